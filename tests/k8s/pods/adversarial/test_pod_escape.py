"""See tests/executor/adversarial/test_escape.py."""

from __future__ import annotations

import pytest

from tests.executor.adversarial.test_escape import *  # noqa: F403 - the same tests, with this folder's server

pytestmark = pytest.mark.pods
