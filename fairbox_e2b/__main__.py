"""`python -m fairbox_e2b`: serves E2B's SDKs with the sandboxes of an executor."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from executor_service import ExecutorClient
from fairbox.config import load, setting
from fairbox.errors import ConfigError, FairboxError
from fairbox.extras import require
from fairbox.net.serving import check_address, run_service
from fairbox.telemetry import logs

_NAME = "fairbox_e2b"
_LAST_CALLS_S = 2.0


@dataclass(frozen=True)
class E2bConfig:
    """Settings of the service."""

    executor: str = setting("127.0.0.1:50051", help="Addresses of executors, separated by commas.")
    listen: str = setting("127.0.0.1:3000", help="Address to serve E2B's SDKs at; beyond loopback with api_key_file.")
    api_key_file: str = setting("", help="File with the key that clients have as E2B_API_KEY; empty: any key will do.")
    image: str = setting("", help="Image of sandboxes whose template names none; empty: none.")
    memory_mb: int = setting(0, help="MiB of memory of a sandbox; 0: the executor's default.", least=0)
    max_sandboxes: int = setting(32, help="Sandboxes that may live at once.", least=1, most=4096)
    max_timeout_s: int = setting(3600, help="Longest timeout of a sandbox, seconds.", least=1, most=86_000)

    def validate(self) -> None:
        """Raises ConfigError for what the types can't say."""
        check_address(self.listen, insecure=bool(self.api_key_file))

    def api_key(self) -> bytes:
        """The key; empty: there is none. Raises ConfigError for a file that has none."""
        if not self.api_key_file:
            return b""
        try:
            key = Path(self.api_key_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"api_key_file: can't read {self.api_key_file}: {error.strerror}") from None
        if not key:
            raise ConfigError(f"api_key_file: {self.api_key_file} is empty")
        return key


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    config = load(E2bConfig, prefix="FAIRBOX_E2B", prog=f"python -m {_NAME}", description=__doc__ or "", argv=argv)
    key = config.api_key()
    require(f"python -m {_NAME}", "gateway", "aiohttp")
    from fairbox.net.http_server import HttpServer
    from fairbox_e2b.sandbox import Sandboxes
    from fairbox_e2b.service import application

    async def serve(stop: asyncio.Event) -> None:
        async with (
            ExecutorClient(config.executor) as executor,
            Sandboxes(
                executor,
                image=config.image,
                memory_mb=config.memory_mb,
                max_sandboxes=config.max_sandboxes,
                max_timeout_s=config.max_timeout_s,
            ) as sandboxes,
        ):
            server = HttpServer(
                application(sandboxes, key),
                config.listen,
                setting="listen",
                logger=_NAME,
                last_calls_s=_LAST_CALLS_S,
                auto_decompress=False,
            )
            await server.start(None)
            logs.say(_NAME, f"serving http://{server.address}, sandboxes of {config.executor}")
            try:
                await stop.wait()
            finally:
                await server.stop()

    return run_service(serve, name=_NAME)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FairboxError as error:
        logs.say(_NAME, str(error))
        sys.exit(error.exit_code)
