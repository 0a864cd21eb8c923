"""Loads a typed configuration: defaults, then a file, then environment variables, then the command line.

A flag, a key of the file and an environment variable share one name: `max_queued` is `--max-queued 5` or
`max_queued=5`, `max_queued: 5` in YAML or TOML, and `PREFIX_MAX_QUEUED=5`. Unknown names and bad values are
`ConfigError`s that name the key, the value and where it came from; nothing is ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import itertools
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fairbox.errors import ConfigError
from fairbox.settings import Leaf, check, leaves, setting

__all__ = ["check", "config_files", "from_tree", "load", "peek", "read_document", "read_tree", "setting"]

T = TypeVar("T")

_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_\w+)$")
"""Variables that Kubernetes sets for every Service of a namespace (EXECUTOR_PORT=tcp://...); they are not settings."""


def load(
    cls: type[T],
    *,
    prefix: str,
    prog: str,
    description: str,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> T:
    """The configuration of a program, an instance of the dataclass `cls`.

    `argv` defaults to the process's arguments, `env` to its environment; `prefix` is that of the environment variables.
    `--help` prints every setting and exits. A method `validate()` of `cls` may raise ConfigError for what types can't
    say.
    """
    argv = sys.argv[1:] if argv is None else argv
    env = os.environ if env is None else env
    known = list(leaves(cls))
    if any(word in ("-h", "--help") for word in argv):
        _print(_help(known, prefix, prog, description))
        raise SystemExit(0)
    flags = list(_flags(argv, known))
    config = OmegaConf.structured(cls)
    _unlock(config)
    for path in (value for key, value, _ in flags if key == "config"):
        config = _merge_file(config, path, known)
    for key, value, source in _variables(env, prefix, known):
        config = _set(config, key, value, source, known)
    for key, value, source in flags:
        if key != "config":
            config = _set(config, key, value, source, known)
    return _build(cls, config)


def from_tree(cls: type[T], tree: Mapping[str, Any], *, path: str) -> T:
    """An instance of the dataclass `cls` from what a file says at `path`. ConfigError with the path of the key.

    `validate()` is the caller's to call.
    """
    known, config = list(leaves(cls)), OmegaConf.structured(cls)
    _unlock(config)
    for key, value in tree.items():
        if not any(leaf.path.partition(".")[0] == key for leaf in known):
            near = difflib.get_close_matches(str(key), [leaf.path for leaf in known], n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(leaf.path for leaf in known)}"
            raise ConfigError(f"{path}.{key} is not a setting; {hint}")
        try:
            config = OmegaConf.merge(config, {key: value})
        except OmegaConfBaseException as error:
            raise ConfigError(f"{path}.{key} is {value!r}: {_first_line(error)}") from None
    missing = OmegaConf.missing_keys(config)
    if missing:
        raise ConfigError(f"{path}.{min(missing)} is not set and has no default")
    result = OmegaConf.to_object(config)
    assert isinstance(result, cls)
    check(result, path)
    return result


def peek(name: str, *, prefix: str, argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> Any:
    """The value that `load()` would get for the top setting `name`, before anything is known of the others; None: none.

    For a setting that says which other settings there are.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    said = None
    for path in _values(words, "config"):
        said = read_tree(Path(path)).get(name, said)
    said = (os.environ if env is None else env).get(f"{prefix}_{name}".upper(), said)
    return next(reversed(_values(words, name)), said)


def _values(words: Sequence[str], name: str) -> list[str]:
    """The values that flags of one name give, in their order."""
    found = []
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        key, equals, value = word.partition("=")
        if key.removeprefix("--").replace("-", "_") == name and (equals or word.startswith("--")):
            found.append(value if equals else following)
    return found


def config_files(cls: type[Any], argv: Sequence[str] | None = None) -> list[Path]:
    """The files that `load()` reads with the same arguments, in its order; later ones win."""
    flags = _flags(sys.argv[1:] if argv is None else argv, list(leaves(cls)))
    return [Path(value) for key, value, _ in flags if key == "config"]


def read_tree(path: Path) -> dict[str, Any]:
    """Content of a file, nothing of it checked but its syntax. ConfigError if it can't be read."""
    tree = OmegaConf.to_container(_tree(str(path)))
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def read_document(path: Path) -> Any:
    """As `read_tree`, of a file that may hold a list, with interpolations (`${oc.env:NAME}`) filled in."""
    try:
        return OmegaConf.to_container(_document(str(path)), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {_first_line(error)}") from None


def _build(cls: type[T], config: DictConfig) -> T:
    missing = OmegaConf.missing_keys(config)
    if missing:
        raise ConfigError(f"{min(missing)} is not set and has no default")
    try:
        result = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        key = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(key + _first_line(error)) from None
    assert isinstance(result, cls)
    check(result)
    validate = getattr(result, "validate", None)
    if validate is not None:
        validate()
    return result


def _flags(argv: Sequence[str], known: list[Leaf]) -> Iterator[tuple[str, str, str]]:
    """(key, value, source) for `--a-b value`, `--a-b=value`, `--switch` and `a_b=value`."""
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        key = name.removeprefix("--")
        if word.startswith("--"):
            if not equals:
                is_switch = any(leaf.matches(key.replace("-", "_")) and leaf.type is bool for leaf in known)
                if is_switch and not (words and words[0] in ("true", "false")):
                    value = "true"
                elif words:
                    value = words.pop(0)
                else:
                    raise ConfigError(f"{word} needs a value")
        elif not equals:
            raise ConfigError(f"{word!r} is not understood; give settings as --name VALUE or name=VALUE, see --help")
        yield key, value, name


def _variables(env: Mapping[str, str], prefix: str, known: list[Leaf]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(env):
        if not name.startswith(prefix + "_") or _SERVICE_LINK.match(name):
            continue
        yield name[len(prefix) + 1 :].lower().replace("__", "."), env[name], f"environment variable {name}"


def _tree(path: str) -> DictConfig:
    loaded = _document(path)
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path}: must be a mapping of settings")
    return loaded


def _document(path: str) -> DictConfig | ListConfig:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    try:
        text = data.decode()
        if path.endswith(".toml"):
            return OmegaConf.create(tomllib.loads(text))
        loaded: DictConfig | ListConfig = OmegaConf.load(io.StringIO(text))
        return loaded
    except OSError:  # OmegaConf's for a document that is a number, a date or the like
        raise ConfigError(f"{path}: must be a mapping or a list") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}, {_place(data[: error.start])}: is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}{_marked(error)}") from None
    except yaml.reader.ReaderError as error:
        place = _place(text.partition(chr(error.character))[0].encode())
        raise ConfigError(f"{path}, {place}: character #x{error.character:04x} is not allowed") from None
    except tomllib.TOMLDecodeError as error:
        problem, at, place = str(error).rstrip(")").partition(" (at line ")
        raise ConfigError(f"{path}, line {place}: {problem}" if at else f"{path}: {error}") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: {_first_line(error)}") from None


def _place(before: bytes) -> str:
    """Line and column of what follows `before`, both from 1."""
    lines = before.split(b"\n")
    return f"line {len(lines)}, column {len(lines[-1].decode(errors='replace')) + 1}"


def _marked(error: yaml.MarkedYAMLError) -> str:
    """Place and kind of a YAML file's error, phrased to follow its path."""
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    begin = error.context_mark
    since = f", which begins in line {begin.line + 1}" if begin is not None and begin is not mark else ""
    context = f" ({error.context}{since})" if error.context and error.problem else ""
    return f"{place}: {error.problem or error.context}{context}"


def _merge_file(config: DictConfig, path: str, known: list[Leaf]) -> DictConfig:
    tree = _tree(path)
    try:
        merged = OmegaConf.merge(config, tree)
    except ConfigKeyError as error:
        raise _unknown(str(error.full_key), path, known) from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {error.full_key}: {_first_line(error)}") from None
    assert isinstance(merged, DictConfig)
    return merged


def _set(config: DictConfig, key: str, value: str, source: str, known: list[Leaf]) -> DictConfig:
    leaf = next((leaf for leaf in known if leaf.matches(key.replace("-", "_"))), None)
    if leaf is None:
        raise _unknown(key.replace("-", "_"), source, known)
    try:
        if leaf.optional and value in ("none", "null", ""):
            parsed: Any = None
        else:
            parsed = value if leaf.type is str else yaml.safe_load(value)
        tree: Any = parsed
        for part in reversed(_spelled(config, leaf, key)):
            tree = {part: tree}
        merged = OmegaConf.merge(config, tree)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"{key} is {value!r} ({source}): {_first_line(error)}") from None
    assert isinstance(merged, DictConfig)
    return merged


def _spelled(config: DictConfig, leaf: Leaf, key: str) -> list[str]:
    """The parts of `key`: names of settings with `_` for `-`; keys of a mapping as the mapping spells them, because
    variables have no `-`, and new ones as they are given."""
    parts, node = key.split("."), config
    for i, (name, part) in enumerate(zip(leaf.path.split("."), parts, strict=True)):
        plain = part.replace("-", "_")
        parts[i] = plain
        if name == "*":
            parts[i] = next((str(known) for known in node if str(known).replace("-", "_") == plain), part)
        if i + 1 < len(parts):
            node = node.get(parts[i], {})
    return parts


def _unknown(key: str, source: str, known: list[Leaf]) -> ConfigError:
    near = difflib.get_close_matches(key, [leaf.path for leaf in known], n=1)
    hint = f"; did you mean {near[0]}?" if near else "; see --help"
    return ConfigError(f"{key} ({source}) is not a setting{hint}")


def _unlock(node: Any) -> None:
    """Frozen dataclasses become read-only nodes; the sources above must be able to write."""
    if isinstance(node, (DictConfig, ListConfig)):
        OmegaConf.set_readonly(node, False)
        if not node._is_none() and not node._is_missing():
            if isinstance(node, DictConfig):
                for key in list(node.keys()):
                    _unlock(node._get_node(key))
            else:
                for index in range(len(node)):
                    _unlock(node._get_node(index))


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _print(text: str) -> None:
    """To stdout; a reader that has seen enough (`--help | head`) is no error."""
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's own flush complains


def _help(known: list[Leaf], prefix: str, prog: str, description: str) -> str:
    lines = [f"usage: {prog} [--config FILE] [--name VALUE | name=VALUE ...]", "", description, "", "settings:"]
    lines.append("  --config FILE  YAML or TOML with the same names; environment variables and flags override it")
    for leaf in known:
        here = f"{leaf.shown}, here " if leaf.shown else ""
        shown = "required" if leaf.default is dataclasses.MISSING else f"default: {here}{_show(leaf.default)}"
        lines.append(f"  {leaf.flag} {_metavar(leaf)}")
        lines.append(f"      {leaf.help} ({shown}; {leaf.variable(prefix)})")
    return "\n".join(lines)


def _metavar(leaf: Leaf) -> str:
    return getattr(leaf.type, "__name__", str(leaf.type)).upper()


def _show(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value) or "empty"
