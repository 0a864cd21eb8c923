"""See tests/executor/adversarial/test_endings.py."""

from __future__ import annotations

import pytest

from tests.executor.adversarial.test_endings import *  # noqa: F403 - the same tests, with this folder's server

pytestmark = pytest.mark.pods
