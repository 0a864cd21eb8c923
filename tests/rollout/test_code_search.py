"""Code search from end to end: real repositories in real sandboxes, perfect and lazy agents, and a real model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollout.dump import DumpWriter, read_dump, record_of
from rollout.dump_check import check_dump
from rollout.engines import GenerationRequest, SamplingParams
from rollout.envs.code_search import CodeSearchEnvironment, default_reward
from rollout.loop import AgentLoop, Limits, StopReason, Task, ToolCallRecord
from rollout.loop.results import TrajectoryResult
from rollout.rewards import Sample
from rollout.rewards.localization.dialects import Dialect
from rollout.stack import LocalStack
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox, ToolOutcome
from rollout.tools.code.client import ToolServices
from rollout.tools.registry.registry import open_tools
from tests.rollout.code_search import RealSearch, real_search
from tests.rollout.real_tasks import RealTask
from tests.rollout.scripted import roll_out, tool_call
from tests.rollout.services import nothing_left

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
FEW, ALL = 3, 13
"""Tasks of different packages: in every run of the tests, and of the soak."""
LIMITS = Limits(None, None, 6, None, 120.0, None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def search(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> RealSearch:
    soak = "soak" in request.config.getoption("-m", default="").replace("not soak", "")
    return await real_search(tmp_path_factory.mktemp("search"), ALL if soak else FEW)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(search: RealSearch) -> AsyncIterator[LocalStack]:
    roots = f"workspace_roots={json.dumps([str(search.repos)])}"
    async with LocalStack(executor_args=[roots]) as stack:
        yield stack


def bash(*commands: str) -> str:
    return "\n".join(tool_call("bash", command=command) for command in commands)


def locations(task: RealTask) -> list[dict[str, str]]:
    """The answer, as the finish tool takes it."""
    found = []
    for change in task.row["file_changes"]:
        file, entities = change["file"], change["changes"]["edited_entities"] or []
        functions = [each.partition(":")[2].rpartition(".") for each in entities]
        found += [
            {"file": file, "class_name": owner, "function_name": name}
            if owner
            else {"file": file, "function_name": name}
            for owner, _, name in functions
        ]
        named = {owner or name for owner, _, name in functions}
        modules = {each.partition(":")[2] for each in change["changes"]["edited_modules"] or []}
        found += [{"file": file, "class_name": name} for name in sorted(modules - named)] or [{"file": file}]
    return found


def best(task: RealTask) -> float:
    """The most that the answer may be worth: a level without truth is worth nothing."""
    changes = [change["changes"] for change in task.row["file_changes"]]
    levels = ("edited_modules", "edited_entities")
    return 1.0 + sum(any(change[level] for change in changes) for level in levels)


Answer = Callable[[RealTask], str]


class Agents:
    """Plays the tasks of a search with a scripted model that looks first, then answers."""

    def __init__(self, search: RealSearch, stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
        self.search, self.stack, self.tokenizer, self.chat = search, stack, tokenizer, chat

    def _task(self, request: GenerationRequest) -> RealTask:
        prompt = self.tokenizer.decode(request.input_ids)
        (task,) = (task for task in self.search.tasks if task.row["problem_statement"].strip()[:400] in prompt)
        return task

    async def play(
        self, environment: CodeSearchEnvironment, turns: Sequence[Answer], samples: int = 1
    ) -> list[tuple[Task, TrajectoryResult]]:
        def say(request: GenerationRequest, turn: int) -> str:
            return turns[turn](self._task(request))

        async with contextlib.AsyncExitStack() as stack:
            ports = self.stack.ports
            services = await stack.enter_async_context(ToolServices(executor=ports.executor, limiter=ports.limiter))
            tools = await stack.enter_async_context(open_tools(environment.tools(), services))
            engine = ScriptedEngine(self.tokenizer, say, vocab_size=49152, max_model_tokens=100_000)
            loop = AgentLoop(engine, self.chat, Toolbox(tools, max_parallel_calls=5), LIMITS, SamplingParams())
            schedule = {"concurrency": 6, "samples_per_prompt": samples}
            return await roll_out(loop, environment.score, environment.tasks(), retries=1, **schedule)


@pytest.fixture
def agents(search: RealSearch, stack: LocalStack, tokenizer: HubTokenizer, chat: ChatTemplate) -> Agents:
    return Agents(search, stack, tokenizer, chat)


def look(task: RealTask) -> str:
    """Five calls of one turn, one of them in the file that is asked for."""
    path = shlex.quote(sorted(task.files)[0])
    return bash("pwd", "ls -a", "grep -rnc --include='*.py' def . | head -3", f"sed -n 1,5p {path}", f"wc -l {path}")


def rescored(record: dict[str, Any], row: dict[str, Any]) -> Sample:
    """The sample of a trajectory, from its dump and its row alone."""
    calls = [ToolCallRecord(**{**call, "outcome": ToolOutcome(call["outcome"])}) for call in record["tool_calls"]]
    last = record["messages"][-1]
    return Sample(
        text=last["content"] if last["role"] == "assistant" else "",
        ground_truth=record["gts"],
        row=row,
        messages=tuple(record["messages"]),
        tool_calls=tuple(calls),
        turns=record["turns"],
        trajectory_id=record["request_id"],
        stop_reason=StopReason(record["stop_reason"]),
    )


async def test_perfect_agent_gets_the_best_reward_and_lazy_one_nothing(agents: Agents, tmp_path: Path) -> None:
    await perfect_and_lazy(agents, tmp_path)


@pytest.mark.soak
async def test_every_task_can_be_solved(agents: Agents, tmp_path: Path) -> None:
    assert len(agents.search.tasks) == ALL
    await perfect_and_lazy(agents, tmp_path)


async def perfect_and_lazy(agents: Agents, tmp_path: Path) -> None:
    search, chat = agents.search, agents.chat
    environment = search.environment()

    def perfect(task: RealTask) -> str:
        return tool_call("localization_finish", locations=locations(task))

    done = await agents.play(environment, [look, perfect], samples=2)
    assert len(done) == 2 * len(search.tasks)
    by_id = {task.row["instance_id"]: task for task in search.tasks}
    for task, result in done:
        assert not result.masked, result.error
        assert result.reward is not None
        assert result.reward.value == pytest.approx(best(by_id[task.uid])), task.uid
        assert (result.stop_reason, result.turns) == (StopReason.ANSWERED, 2)
        assert [call.outcome for call in result.tool_calls] == [ToolOutcome.OK] * 6, result.tool_calls
        assert result.tool_calls[0].text.strip() == "/testbed"
    # All trajectories of a task have one prompt, and nothing of this machine is in it.
    for uid in by_id:
        prompts = {result.trajectory.prompt_ids for task, result in done if task.uid == uid}
        assert len(prompts) == 1
        assert str(search.repos) not in chat.decode(prompts.pop())
    with DumpWriter(tmp_path, 1) as dump:
        for task, result in done:
            dump.write(record_of(result, task, step=1, model="scripted", decode=chat.decode_plain))
    for record in read_dump(dump.path):
        again = await default_reward("finish").score(rescored(record, by_id[record["uid"]].row))
        assert (again.value, dict(again.parts)) == (record["score"], record["reward_parts"])

    def lazy(task: RealTask) -> str:
        return tool_call("localization_finish", locations=[])

    for answer in (lazy, lambda task: "I could not find it."):
        for _, result in await agents.play(environment, [answer]):
            assert result.reward is not None
            assert result.reward.value == 0.0
    await nothing_left(agents.stack)


@pytest.mark.parametrize("dialect", ["files", "code_block"])
async def test_text_dialects_are_solvable_too_and_thoughts_are_no_answer(
    agents: Agents, search: RealSearch, dialect: Dialect
) -> None:
    def said(files: Sequence[str], task: RealTask | None) -> str:
        if dialect == "files":
            return "<files>\n" + "\n".join(files) + "\n</files>"
        lines = []
        for place in [] if task is None else locations(task):
            if "function_name" in place:
                lines += [place["file"]]
                lines += [f"class: {place['class_name']}"] if "class_name" in place else []
                lines += [f"function: {place['function_name']}", ""]
        return "```\n" + "\n".join(lines) + "\n```"

    def perfect(task: RealTask) -> str:
        return f"<think>\n{said(['wrong.py'], None)}\n</think>\n\n" + said(sorted(task.files), task)

    by_id = {task.row["instance_id"]: task for task in search.tasks}
    best_of = 0
    for task, result in await agents.play(search.environment(dialect=str(dialect)), [look, perfect]):
        assert result.reward is not None, result.error
        if dialect == "files":
            assert result.reward.value == 1.0
            best_of += 1
        elif all("function_name" in place for place in locations(by_id[task.uid]) if len(place) > 1):
            # A class as a whole can't be said in a code block.
            assert result.reward.value == pytest.approx(best(by_id[task.uid])), task.uid
            best_of += best(by_id[task.uid]) == 3.0
    assert best_of > 0


async def test_answer_is_nowhere_in_the_workspace_and_nothing_can_be_written_there(
    agents: Agents, search: RealSearch
) -> None:
    """The patch made the bug, so what it removed is the fix: no object of the repository has it."""

    def fix(task: RealTask) -> list[str]:
        lines = task.row["patch"].splitlines()
        removed = {line[1:].strip() for line in lines if line[:1] == "-" and line[:3] != "---"}
        added = {line[1:].strip() for line in lines if line[:1] == "+" and line[:3] != "+++"}
        return sorted(line for line in removed - added if len(line) > 24)

    def seek(task: RealTask) -> str:
        wanted = " ".join(f"-e {shlex.quote(line)}" for line in fix(task)[:1] or ["no line is long enough"])
        return bash(
            "git rev-list --all --count; git tag; git remote; git stash list; ls .git/logs 2>/dev/null; true",
            f"git cat-file --batch-all-objects --batch | grep -aF {wanted} | sort -u",
            f"grep -rhF --include='*.py' {wanted} . | sort -u",
            "git cat-file --batch-all-objects --batch-check | wc -l",
            "touch here && echo written",
        )

    for _, result in await agents.play(search.environment(), [seek, lambda task: "done"]):
        history, objects, files, count, written = (call.text.strip() for call in result.tool_calls)
        assert history == "1"
        assert int(count) > 10
        assert "written" not in written
        assert objects == files  # a line that is in an object is one that the state with the bug has, too


async def played_by_the_model(
    search: RealSearch, model_dir: Path, out: Path, tasks: int, *, samples: int, turns: int
) -> None:
    """Plays with a model by the command, and checks every token and every reward of the dump."""
    few = [
        *search.words,
        f"n={tasks}",
        f"model={model_dir}",
        f"out={out}",
        "--up",
        f"samples_per_prompt={samples}",
        f"limits.max_turns={turns}",
        "limits.max_turn_tokens=40",
        "env_config.dialect=files",
    ]
    words = [sys.executable, "-m", "rollout.cli", "rollout", *few]
    done = await asyncio.to_thread(subprocess.run, words, cwd=ROOT, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr
    rows = {task.row["instance_id"]: task.row for task in search.tasks}
    records = list(read_dump(out / "1.jsonl"))
    assert len(records) == samples * tasks
    for record in records:
        assert not record["masked"], record["error"]
        again = await default_reward("files").score(rescored(record, rows[record["uid"]]))
        assert again.value == record["score"]
    assert len({(record["uid"], tuple(record["prompt_ids"])) for record in records}) == tasks
    found = check_dump(out / "1.jsonl", model_dir)
    assert found.problems == ()
    assert found.max_logprob_difference < 1e-4, found.worst


async def test_model_plays_it_by_the_command(search: RealSearch, tiny_dir: Path, tmp_path: Path) -> None:
    await played_by_the_model(search, tiny_dir, tmp_path / "out", 2, samples=2, turns=2)


@pytest.mark.soak
async def test_real_model_plays_all_of_it_by_the_command(search: RealSearch, model_dir: Path, tmp_path: Path) -> None:
    assert len(search.tasks) == ALL
    await played_by_the_model(search, model_dir, tmp_path / "out", ALL, samples=1, turns=2)
