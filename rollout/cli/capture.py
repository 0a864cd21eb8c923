"""`fairbox capture`: an OpenAI-compatible endpoint in front of a model, which records exact tokens, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fairbox.config import load, setting
from fairbox.extras import require
from fairbox.loading import Interrupted, load_apart, until_set
from fairbox.net.serving import check_address, run_service
from fairbox.telemetry.program import TelemetrySettings, open_telemetry
from rollout.capture.settings import CaptureSettings
from rollout.config import EngineSettings, TokenChoice
from rollout.engine_choice import open_engine, require_engine
from rollout.engines.model_store import find_model


@dataclass(frozen=True)
class CaptureConfig(TelemetrySettings, CaptureSettings):
    """Settings of `fairbox capture`."""

    model: str = setting(
        "smollm2",
        help="Folder of a model in the layout of the Hugging Face hub, OWNER/NAME of one in its cache, or smollm2.",
    )
    sampling: TokenChoice = setting(factory=TokenChoice, help="What requests get that say nothing.")
    engine: EngineSettings = setting(factory=EngineSettings, help="What samples the turns.")

    def validate(self) -> None:
        """ConfigError or FieldErrors for what types can't say."""
        super().validate()
        self.validate_telemetry()
        self.engine.validate()
        self.sampling.params()
        check_address(self.listen, insecure=self.insecure or bool(self.token_file))


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 after SIGTERM, 130 after Ctrl-C."""
    config = load(CaptureConfig, prefix="FAIRBOX_CAPTURE", prog="fairbox capture", description=__doc__ or "", argv=argv)
    require("fairbox capture", "gateway", "aiohttp")
    require_engine(config.engine.kind)
    config.keyring()  # a file that can't be used is told before the model is loaded
    model_dir = find_model(config.model)

    async def serve(stop: asyncio.Event) -> None:
        from rollout.capture import CaptureGateway  # aiohttp
        from rollout.tokens import ChatTemplate, HubTokenizer

        print(f"loading {model_dir.name}", file=sys.stderr)
        telemetry = open_telemetry(config, service="capture", instance=f"{socket.gethostname()}:{config.listen}")
        async with telemetry, contextlib.AsyncExitStack() as stack:
            async with until_set(stop):
                chat = await load_apart(lambda: ChatTemplate(HubTokenizer(model_dir)))
                opening = open_engine(config.engine, model_dir, ray_address="auto")
                engine = await stack.enter_async_context(opening)
            gateway = CaptureGateway(
                engine,
                chat,
                config,
                sampling=config.sampling.params(),
                queue_timeout_s=config.engine.queue_timeout_s,
            )
            async with gateway:
                url = gateway.base_url("ID")
                print(f"{engine.model_name} on {url} (a trajectory per ID); Ctrl-C ends it", file=sys.stderr)
                await stop.wait()

    async def until_interrupted(stop: asyncio.Event) -> None:
        with contextlib.suppress(Interrupted):  # before the model was loaded
            await serve(stop)

    return run_service(until_interrupted, name="fairbox capture")
