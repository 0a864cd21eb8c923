"""Prints what pyproject.toml in this folder asks for: the project's dependencies, and those of the extras named.

With `--only` first, those of the extras alone; a name that is no extra is a package. It runs inside image builds, so
that dependencies can be installed before the sources are copied: an edit of a source then installs nothing again.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
names = sys.argv[1:]
wanted = [] if names[:1] == ["--only"] else [*project["dependencies"]]
for name in names:
    if name != "--only":
        wanted += project["optional-dependencies"].get(name, [name])
sys.stdout.write("\n".join(wanted) + "\n")
