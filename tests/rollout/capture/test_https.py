"""The capture gateway with a certificate."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairbox.errors import ConfigError
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.capture.gateways import QUESTION, client, scripted
from tests.security.services import Secrets
from tests.security.test_rotation import shown_to_strangers


async def test_openais_client_speaks_to_the_capture_gateway_over_https(
    tokenizer: HubTokenizer, chat: ChatTemplate, tmp_path: Path
) -> None:
    secrets = Secrets.make(tmp_path)
    files: dict[str, Any] = {"tls_cert": str(secrets.server.cert), "tls_key": str(secrets.server.key)}
    trusted = ssl.create_default_context(cafile=str(secrets.authority.ca))
    async with scripted(tokenizer, chat, ["Three."], **files) as (gateway, _):
        assert gateway.base_url("t").startswith("https://127.0.0.1:")
        async with client(gateway, http_client=httpx.AsyncClient(verify=trusted)) as openai:
            made = await openai.chat.completions.create(model="scripted", messages=QUESTION)
        shown = await asyncio.to_thread(shown_to_strangers, gateway.address, secrets)
    assert made.choices[0].message.content == "Three."
    assert shown == "server"


async def test_a_capture_gateway_with_half_a_certificate_does_not_start(
    tokenizer: HubTokenizer, chat: ChatTemplate, tmp_path: Path
) -> None:
    secrets = Secrets.make(tmp_path)
    files: dict[str, Any] = {"tls_cert": str(secrets.server.cert), "tls_key": str(tmp_path / "none.pem")}
    with pytest.raises(ConfigError, match=r"tls_key is '.*none.pem', which can't be read"):
        async with scripted(tokenizer, chat, [], **files):
            pass
