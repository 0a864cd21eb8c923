"""Services of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.service.serving import Tier


@pytest.fixture
def tier(tokenizer: HubTokenizer, chat: ChatTemplate, tmp_path: Path) -> Tier:
    return Tier(tokenizer, chat, tmp_path)
