"""Settings come from one place, in one order, and nothing wrong is ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairbox.config import check, from_tree, load, setting
from fairbox.errors import ConfigError


@dataclass(frozen=True)
class Bucket:
    max_in_flight: int = setting(10, help="Most tokens held at once.")


@dataclass(frozen=True)
class Limits:
    wall_time_s: float = setting(3.0, help="Wall time, seconds.")


@dataclass(frozen=True)
class Config:
    listen: str = setting("127.0.0.1:1", help="Address.")
    count: int | None = setting(None, help="How many; none: all.")
    insecure: bool = setting(False, help="Listen beyond loopback.")
    limits: Limits = setting(factory=Limits, help="")
    buckets: dict[str, Bucket] = setting(factory=lambda: {"code": Bucket()}, help="Buckets by name.")

    def validate(self) -> None:
        if self.count == 13:
            raise ConfigError("count is 13, must be another number")


def config(*argv: str, **env: str) -> Config:
    return load(Config, prefix="APP", prog="app", description="An app.", argv=argv, env=env)


def test_defaults_are_those_of_the_fields() -> None:
    assert config() == Config()


def test_flags_override_environment_overrides_file(tmp_path: Path) -> None:
    path = tmp_path / "app.yaml"
    path.write_text("listen: file:1\ncount: 1\nlimits: {wall_time_s: 1}\n")
    loaded = config("--config", str(path), "--listen", "flag:3", APP_LISTEN="env:2", APP_COUNT="2")
    assert (loaded.listen, loaded.count, loaded.limits.wall_time_s) == ("flag:3", 2, 1.0)


def test_toml_and_yaml_hold_the_same_names(tmp_path: Path) -> None:
    path = tmp_path / "app.toml"
    path.write_text("count = 4\n[buckets.big]\nmax_in_flight = 99\n")
    loaded = config("--config", str(path))
    assert loaded.count == 4
    assert loaded.buckets == {"code": Bucket(), "big": Bucket(99)}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--insecure"], Config(insecure=True)),
        (["--insecure", "false"], Config()),
        (["--count", "none"], Config()),
        (["--listen=0123"], Config(listen="0123")),
        (["limits.wall_time_s=7"], Config(limits=Limits(7.0))),
        (["--limits.wall-time-s", "7"], Config(limits=Limits(7.0))),
        (["buckets.code.max_in_flight=2"], Config(buckets={"code": Bucket(2)})),
        (["buckets.new.max_in_flight=2"], Config(buckets={"code": Bucket(), "new": Bucket(2)})),
    ],
)
def test_flags_say_what_they_set(words: list[str], expected: Config) -> None:
    assert config(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lisen", "x"], r"lisen \(--lisen\) is not a setting; did you mean listen\?"),
        (["count=many"], r"count is 'many' \(count\): Value 'many'"),
        (["count=[1"], r"count is '\[1'"),
        (["--count"], r"--count needs a value"),
        (["stray"], r"'stray' is not understood"),
        (["--config", "/nonexistent.yaml"], r"/nonexistent.yaml: No such file"),
        (["count=13"], r"count is 13, must be another number"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*words)


@pytest.mark.parametrize(("text", "message"), [("cout: 3\n", "cout .* is not a setting"), ("count: [1\n", "app.yaml")])
def test_unknown_keys_of_a_file_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "app.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        config("--config", str(path))


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("app.yaml", b"count: 1\nlimits:\n  max: [1\nratio: 2\n", "line 4, column 6: "),
        ("app.yaml", b"count: 1\ncount: 2\n", "line 2, column 1: found duplicate key count"),
        ("app.yaml", b"count: 1\n\tratio: 2\n", "line 2, column "),
        ("app.yaml", "name: ä\nother: ö\x01\n".encode(), "line 2, column 9: character #x0001 is not allowed"),
        ("app.yaml", b"count: 1\nname: \xff\n", "line 2, column 7: is not UTF-8"),
        ("app.toml", b"count = 1\nratio = \n", "line 2, column 9: Invalid value"),
    ],
)
def test_a_file_that_is_no_yaml_is_named_with_line_and_column(
    tmp_path: Path, name: str, text: bytes, place: str
) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    with pytest.raises(ConfigError) as raised:
        config("--config", str(path))
    assert str(raised.value).startswith(f"{path}, {place}")
    assert "\n" not in str(raised.value)


def test_unknown_variables_are_refused_but_those_of_kubernetes_services_are_not_ours() -> None:
    assert config(APP_PORT="tcp://10.0.0.1:1", APP_SERVICE_HOST="10.0.0.1", APP_PORT_1_TCP_ADDR="x") == Config()
    with pytest.raises(ConfigError, match="environment variable APP_LIMITZ"):
        config(APP_LIMITZ="1")


def test_help_lists_every_setting_with_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        config("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for expected in ("--listen", "--limits.wall-time-s", "APP_LIMITS__WALL_TIME_S", "default: 3.0", "--buckets.*"):
        assert expected in text


def test_help_survives_a_reader_that_has_seen_enough() -> None:
    # The reader is gone before the first byte: the pipe is broken for certain, and not by a race.
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        words = [sys.executable, "-m", "limiter", "--help"]
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_new_key_of_a_mapping_is_spelled_as_it_is_given() -> None:
    assert set(config("buckets.web-search.max_in_flight=4").buckets) == {"code", "web-search"}
    loaded = config("buckets.web-search.max_in_flight=4", "--buckets.web-search.max-in-flight=5")
    assert loaded.buckets["web-search"] == Bucket(5)


@dataclass(frozen=True)
class Bounded:
    least: int = setting(1, least=1, help="")
    rate: float | None = setting(None, above=0, help="")
    share: float = setting(0.5, least=0, most=1, help="")
    step: float = setting(0.5, least=0, below=1, help="")
    wait: float = setting(1.0, above=0, most=86_400.0, help="")
    part: float = setting(0.5, above=0, below=1, help="")
    value: float = setting(0.0, finite=True, help="")
    color: str = setting("red", choices=("red", "blue"), help="")


@dataclass(frozen=True)
class Holder:
    own: Bounded = setting(factory=Bounded, help="")
    each: dict[str, Bounded] = setting(factory=dict, help="")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("least", 0, "least is 0, must be at least 1"),
        ("rate", 0.0, "rate is 0.0, must be positive, or none"),
        ("rate", float("inf"), "rate is inf, must be positive, or none"),
        ("share", 1.5, "share is 1.5, must be from 0 to 1"),
        ("share", float("nan"), "share is nan, must be from 0 to 1"),
        ("step", 1.0, "step is 1.0, must be from 0 to below 1"),
        ("wait", 86_401.0, "wait is 86401.0, must be above 0 and at most 86400"),
        ("part", 1.0, "part is 1.0, must be above 0 and below 1"),
        ("value", float("inf"), "value is inf, must be a finite number"),
        ("color", "green", "color is 'green', must be one of: red, blue"),
    ],
)
def test_a_setting_outside_of_its_bounds_is_one_sentence(name: str, value: object, sentence: str) -> None:
    wrong = Bounded(**{name: value})  # type: ignore[arg-type]
    for settings, path, where in (
        (wrong, "", ""),
        (Holder(own=wrong), "", "own."),
        (Holder(each={"a": wrong}), "tool", "tool.each.a."),
    ):
        with pytest.raises(ConfigError) as caught:
            check(settings, path)
        assert str(caught.value) == where + sentence


def test_bounds_are_held_wherever_settings_come_from() -> None:
    check(Holder(each={"a": Bounded()}))
    with pytest.raises(ConfigError, match=r"own\.least is 0, must be at least 1"):
        load(Holder, prefix="T", prog="t", description="", argv=["own.least=0"], env={})
    with pytest.raises(ConfigError, match=r"tools\.own\.least is 0, must be at least 1"):
        from_tree(Holder, {"own": {"least": 0}}, path="tools")
