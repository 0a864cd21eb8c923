"""Configuration of a sandbox: `("fairbox", "image=python:3.12-slim")`, or a FairboxSandboxConfig."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from fairbox.errors import ConfigError

_SCHEMES = {"docker:/": "docker://", "dns:/": "dns:///"}
"""Beginnings of values of which inspect has left one slash."""


class FairboxSandboxConfig(BaseModel):
    """A sample's sandbox. A limit of 0 is the executor's default (GetStatus tells)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = ""
    """Name or id of an image of the executor; with `docker://` before it, it is fetched if the executor may. Empty: the
    executor's own programs, in an empty work folder."""
    executor: str = "127.0.0.1:50051"
    """Address; several with commas are spread over."""
    user: str = ""
    """User of the image, for commands that name no other; empty: the image's own."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of all commands."""
    memory_bytes: NonNegativeInt = 0
    """Memory of everything in the sandbox together."""
    processes: NonNegativeInt = 0
    """Processes and threads alive at once."""
    disk_bytes: NonNegativeInt = 0
    """Bytes that may be written in all."""
    file_bytes: NonNegativeInt = 0
    """Size of the largest file that may be written."""

    @classmethod
    def parse(cls, text: str) -> FairboxSandboxConfig:
        """Reads `name=value`, with `;` between several, as a command line has it. ConfigError.

        inspect takes the text of a task for the name of a file: it puts a folder before it, and makes several slashes
        one.
        """
        found = re.search(rf"(?:^|/)((?:{'|'.join(cls.model_fields)})\s*=.*)", text, re.DOTALL)
        parts = [part.partition("=") for part in (found[1] if found else text).split(";") if part.strip()]
        values = {name.strip(): _slashes(value.strip()) for name, _, value in parts}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field, known = ".".join(map(str, first["loc"])), ", ".join(cls.model_fields)
            raise ConfigError(f"sandbox fairbox: {field}: {first['msg']} (one of {known})") from None


def _slashes(value: str) -> str:
    for left, whole in _SCHEMES.items():
        if value.startswith(left) and not value.startswith(f"{left}/"):
            return whole + value.removeprefix(left)
    return value
