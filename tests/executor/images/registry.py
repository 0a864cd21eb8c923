"""A registry on loopback with one image, which counts how often it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Registry:
    """`with Registry(files_of_a_layout) as registry`: its image is `{address}/own/image`, under any tag."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        (manifest,) = json.loads(files["index.json"])["manifests"]
        self.pulls = 0
        """Layers and configurations that were sent."""
        self.goes_on = threading.Event()
        """Unset: it answers no request."""
        self.goes_on.set()
        registry = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.goes_on.wait(60)
                name = self.path.removeprefix("/v2/").removeprefix("own/image/")
                if name.startswith("manifests/"):
                    name = f"blobs/{manifest['digest']}"
                elif name:
                    registry.pulls += 1
                data = files.get(name.replace(":", "/")) if name else b"{}"
                self.send_response(200 if data is not None else 404)
                self.send_header("Content-Length", str(len(data or b"")))
                self.send_header("Content-Type", manifest["mediaType"])
                self.end_headers()
                self.wfile.write(data or b"")

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Registry:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()

    def trusted_in(self, home: Path) -> None:
        """Lets programs whose HOME this is reach it without TLS."""
        conf = home / ".config" / "containers" / "registries.conf"
        conf.parent.mkdir(parents=True, exist_ok=True)
        with conf.open("a", encoding="utf-8") as file:
            file.write(f'[[registry]]\nlocation = "{self.address}"\ninsecure = true\n')
