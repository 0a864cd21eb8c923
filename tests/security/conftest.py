"""Secrets of one test, and of a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.services import Secrets


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return Secrets.make(tmp_path)
