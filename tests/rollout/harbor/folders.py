"""Task folders and their images for tests, and agents that play them by a script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rollout.cli import main
from rollout.engines import GenerationRequest, SamplingParams
from rollout.envs.base import EnvironmentSetup
from rollout.envs.harbor import HarborConfig, HarborEnvironment
from rollout.envs.swe import SweEnvironment
from rollout.loop import AgentLoop, TrajectoryResult
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox
from rollout.tools.code.client import ToolServices
from rollout.tools.registry.registry import open_tools
from tests.executor.images.archives import Entry, host_layer, layer, layout_files, write_folder
from tests.rollout.scripted import NO_LIMITS, roll_out, tool_call

EXAMPLES = Path(__file__).parents[3] / "examples" / "harbor"
PROGRAMS = ("bash", "cat", "chmod", "cp", "ln", "ls", "mkdir", "rm", "sleep", "touch")
PLAIN_TOML = 'version = "1.0"\n[verifier]\ntimeout_sec = 20\n'
ANSWER_TEST = 'if [ "$(cat /app/answer)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
_HEAVY = {"__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test"}
"""Folders of the standard library that no test needs."""

Play = Callable[[str], Sequence[str]]
"""Task name -> the commands that its agent runs, one a turn."""


def write_task(
    folder: Path, *, test: str = ANSWER_TEST, toml: str = PLAIN_TOML, instruction: str = "Write 42 to /app/answer."
) -> Path:
    """A task folder."""
    files = {"task.toml": toml, "instruction.md": f"{instruction} ({folder.name})\n", "tests/test.sh": test}
    return write_folder(folder, {name: text.encode() for name, text in files.items()})


def add_image(
    store: Path, name: str, layers: Sequence[bytes], folder: str = "/app", pack: str = "+gzip", user: str = ""
) -> None:
    """Puts an image with this name into a store. Commands begin in `folder`."""
    files = layout_files(
        layers, pack=pack, name=name, WorkingDir=folder, Env=["PATH=/usr/bin", "HOME=/root"], User=user
    )
    archive = write_folder(store.parent / "archives" / name, files)
    assert main(["image", "add", str(archive), "--dir", str(store)]) == 0


def python_layer() -> bytes:
    """The standard library of this machine's own Python, beside its program."""
    program = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib", program.name)
    if not (library / "os.py").is_file():
        pytest.skip(f"there is no {library} on this machine")
    found = (path for path in library.rglob("*.py") if not _HEAVY.intersection(path.parts))
    return layer(*(Entry(str(path).lstrip("/"), path.read_bytes()) for path in found))


def files_layer(files: Path) -> bytes:
    """Layer that a Dockerfile's `COPY files/ /app/` makes."""
    paths = sorted(path for path in files.rglob("*") if path.is_file())
    return layer(*(Entry(f"app/{path.relative_to(files)}", path.read_bytes()) for path in paths))


def plain_layers() -> list[bytes]:
    return [host_layer(*PROGRAMS), layer(Entry("app/README", b"An empty folder.\n"))]


class Agents:
    """Plays tasks with a scripted model that runs commands, then ends."""

    def __init__(self, stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
        self.stack, self.tokenizer, self.chat = stack, tokenizer, chat

    async def play(self, data: Path, commands: Play, **settings: object) -> dict[str, TrajectoryResult]:
        """Task name -> its trajectory."""
        return await self.play_in(
            HarborEnvironment(HarborConfig(**settings), EnvironmentSetup(data=data)),  # type: ignore[arg-type]
            commands,
        )

    async def play_in(
        self, environment: HarborEnvironment | SweEnvironment, commands: Play
    ) -> dict[str, TrajectoryResult]:
        """Task name -> its trajectory."""
        instructions = {task.uid: str(task.messages[-1]["content"]).strip() for task in environment.tasks()}

        def say(request: GenerationRequest, turn: int) -> str:
            prompt = self.tokenizer.decode(request.input_ids)
            (name,) = (name for name, text in instructions.items() if text in prompt)
            given = commands(name)
            return tool_call("bash", command=given[turn]) if turn < len(given) else "Done."

        async with contextlib.AsyncExitStack() as stack:
            ports = self.stack.ports
            services = await stack.enter_async_context(ToolServices(executor=ports.executor, limiter=ports.limiter))
            tools = await stack.enter_async_context(open_tools(environment.tools(), services))
            engine = ScriptedEngine(self.tokenizer, say, vocab_size=49152, max_model_tokens=100_000)
            loop = AgentLoop(engine, self.chat, Toolbox(tools), NO_LIMITS, SamplingParams())
            done = await roll_out(loop, environment.score, environment.tasks(), concurrency=4)
        return {task.uid: result for task, result in done}
