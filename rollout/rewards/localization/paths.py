"""Dialects that name files alone: `<files>` and the older `<file-list>`. Pure; time is linear in the text.

<files>                        <file-list>['src/a.py', 'src/b.py']</file-list>
src/a.py
./src/b.py
</files>
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rollout.rewards.localization.answer import Answer, Problems, between, strip_dot_slash
from rollout.rewards.localization.literals import read_literal

__all__ = ["parse_file_list", "parse_files_tag"]


def parse_files_tag(text: str, *, normalise: bool = True) -> Answer:
    """`<files>`: one path a line, or a JSON list. The first pair of tags counts.

    `normalise` drops a leading `./`, as the verifiers environment does on both sides. A list that is no JSON, or holds
    anything but texts, names no file.
    """
    inner = between(text, "<files>", "</files>")
    if inner is None:
        return Answer()
    inner = inner.strip()
    if not inner.startswith("["):
        lines = (line.strip() for line in inner.split("\n"))
        return Answer(found=True, files=_paths((line for line in lines if line), normalise))
    try:
        listed: Any = json.loads(inner)
    except (ValueError, RecursionError) as error:
        return Answer(found=True, problems=(f"<files> holds a list that is no JSON: {error}",))
    return _listed(listed, "<files>", normalise)


def parse_file_list(text: str, *, normalise: bool = False) -> Answer:
    """`<file-list>`: a Python literal, a list, tuple or set of texts. The first pair of tags counts."""
    inner = between(text, "<file-list>", "</file-list>")
    if inner is None:
        return Answer()
    listed, problem = read_literal(inner)
    if problem is not None:
        return Answer(found=True, problems=(f"<file-list>: {problem}",))
    return _listed(listed, "<file-list>", normalise)


def _listed(listed: Any, tag: str, normalise: bool) -> Answer:
    problems = Problems()
    if not isinstance(listed, list | tuple | set):
        problems.add(f"{tag} holds {type(listed).__name__}, must hold a list of paths")
    elif wrong := [each for each in listed if not isinstance(each, str)]:
        problems.add(f"{tag} holds {type(wrong[0]).__name__} among its paths")
    if problems.all():
        return Answer(found=True, problems=problems.all())
    return Answer(found=True, files=_paths(listed, normalise))


def _paths(paths: Iterable[str], normalise: bool) -> frozenset[str]:
    return frozenset(strip_dot_slash(path) for path in paths) if normalise else frozenset(paths)
