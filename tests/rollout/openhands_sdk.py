"""Location of the OpenHands SDK: it needs Python 3.12 and packages of its own, so it runs in an interpreter that has
them: this one, or the one that FAIRBOX_OPENHANDS_PYTHON names."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest


def find_openhands() -> str:
    """The interpreter. Skips the test where there is none."""
    if named := os.environ.get("FAIRBOX_OPENHANDS_PYTHON"):
        return named
    if importlib.util.find_spec("openhands") is None:
        pytest.skip("openhands-sdk is not here: set FAIRBOX_OPENHANDS_PYTHON to a Python 3.12 that has it")
    return sys.executable


def openhands_env() -> dict[str, str]:
    """This process's environment, for it: nothing is fetched, printed or imported from here."""
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1", "PYTHONPATH": ""}
    return os.environ | quiet
