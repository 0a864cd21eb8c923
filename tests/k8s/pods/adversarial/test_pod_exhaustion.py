"""See tests/executor/adversarial/test_exhaustion.py."""

from __future__ import annotations

import pytest

from tests.executor.adversarial.test_exhaustion import *  # noqa: F403 - the same tests, with this folder's server

pytestmark = pytest.mark.pods
