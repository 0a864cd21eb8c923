"""The code interpreter at `sandbox_fusion_url`: a real service over HTTP, a real limiter, no executor."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from executor_service import Cause
from fairbox.errors import ConfigError
from rollout.build import tool_specs
from rollout.config import RolloutConfig
from rollout.dump import read_dump
from rollout.engines import SamplingParams
from rollout.envs import EnvironmentSetup, Gsm8kConfig, Gsm8kEnvironment
from rollout.interop.settings import InterpreterSettings
from rollout.interop.shared import SharedTools, close_shared
from rollout.loop import AgentLoop, Limits, StopReason, Task, TrajectoryResult
from rollout.rewards import gsm8k_reward
from rollout.services import open_services
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import InfraError, Toolbox, ToolOutcome
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from rollout.tools.formats.calls import ToolCall
from tests.executor.gateways import GatewayServer, gateway
from tests.limiter.servers import until
from tests.rollout.sandboxes import Sandbox, adaptive_limiter, answers, interpreter_at, ran, reply, run, sandbox
from tests.rollout.scripted import roll_out, scripted_command, tool_call

ROOT = Path(__file__).parents[2]
BURN = "import time\nprint('before', flush=True)\ntime.sleep(60)"
EATS = "print('before', flush=True)\nx = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): x[i] = 1"


# The same service by both doors


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("open-sesame-0123456789\n")
    tokens.chmod(0o600)
    with gateway(f"gateway_token_file={tokens}") as started:
        yield started


@pytest.mark.parametrize(
    ("code", "outcome", "settings"),
    [
        ("print(6 * 7)", ToolOutcome.OK, {}),
        ("pass", ToolOutcome.OK, {}),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xc3\\xa4')", ToolOutcome.OK, {}),
        ("print('before'); 1 / 0", ToolOutcome.PROGRAM_ERROR, {}),
        ("raise SystemExit(3)", ToolOutcome.PROGRAM_ERROR, {}),
        ("import os; os.kill(os.getpid(), 11)", ToolOutcome.PROGRAM_ERROR, {}),
        (BURN, ToolOutcome.TIME_LIMIT, {"default_timeout": 1.0}),
        (EATS, ToolOutcome.RESOURCE_LIMIT, {"memory_limit_mb": 64}),
        ("echo $((6 * 7)); exit 4", ToolOutcome.PROGRAM_ERROR, {"default_language": "bash"}),
    ],
)
async def test_model_reads_the_same_as_from_the_executor(
    server: GatewayServer, code: str, outcome: ToolOutcome, settings: dict[str, Any]
) -> None:
    config = CodeInterpreterConfig(enable_global_rate_limit=False, **settings)
    async with (
        interpreter_at(f"{server.url}/k/open-sesame-0123456789/run_code", **settings) as tool,
        CodeInterpreter(config, executor=server.server.target) as other,
    ):
        here, there = await run(tool, code), await run(other, code)
    assert (here.text, here.outcome) == (there.text, outcome)
    assert (here.truncated, there.outcome) == (there.truncated, outcome)
    assert here.run_s > 0


async def test_cut_output_is_marked(server: GatewayServer) -> None:
    async with interpreter_at(f"{server.url}/k/open-sesame-0123456789/run_code") as tool:
        response = await run(tool, "print('a' * 50_000, 'end')")
        most = await run(tool, "print('\\0' * 3_000_000, flush=True)")
    assert "[... cut: 50005 bytes in all ...]" in response.text
    assert response.text.endswith("end")
    assert (most.truncated, most.outcome) == (True, ToolOutcome.OK)


async def test_a_bad_token_is_infra_and_told_to_nobody(server: GatewayServer) -> None:
    async with interpreter_at(f"{server.url}/k/a-secret/run_code") as tool:
        with pytest.raises(InfraError, match="HTTP 401") as raised:
            await run(tool)
    assert "a-secret" not in str(raised.value)
    assert server.url in str(raised.value)


# What is sent


async def test_the_request_has_the_settings_and_goes_to_the_url_as_it_stands() -> None:
    settings: dict[str, Any] = {"memory_limit_mb": 512, "default_language": "cpp", "default_timeout": 7.0}
    path = "/k/a-token/v2/run_code?region=north"
    async with sandbox(path=path) as service, interpreter_at(service.url, **settings) as tool:
        assert (await run(tool, "int main() {}")).text == "42"
        await run(tool, "int main() {}", time_limit_s=2.5)
    assert service.paths == ["/k/a-token/v2/run_code"] * 2
    assert service.asked[0] == {
        "code": "int main() {}",
        "language": "cpp",
        "run_timeout": 7.0,
        "compile_timeout": 30.0,
        "memory_limit_MB": 512,
        "stdin": None,
        "files": {},
        "fetch_files": [],
    }
    assert service.asked[1]["run_timeout"] == 2.5


async def test_without_a_memory_limit_the_services_own_holds() -> None:
    async with sandbox() as service, interpreter_at(service.url) as tool:
        await run(tool)
    assert service.asked[0]["memory_limit_MB"] == -1


# Settings and tasks


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"sandbox_fusion_url": "http://x:8080"}, "is 'http://x:8080', has no path, .* http://x:8080/run_code"),
        ({"sandbox_fusion_url": "https://x/"}, "has no path, .* https://x/run_code"),
        ({"sandbox_fusion_url": "x:8080/run_code"}, "must be like http://HOST:8080/run_code"),
        ({"sandbox_fusion_url": "ftp://x/run_code"}, "must be like http://HOST:8080/run_code"),
        ({"sandbox_fusion_url": "http:///run_code"}, "must be like http://HOST:8080/run_code"),
        ({"sandbox_fusion_url": "http://x/run code"}, "must be like http://HOST:8080/run_code"),
        ({"sandbox_fusion_url": ""}, "is '', must be like http://HOST:8080/run_code"),
        ({"sandbox_fusion_url": "http://x:99999/run_code"}, "is no address: Port out of range"),
        ({"sandbox_fusion_url": "http://[::1/run_code"}, "is no address"),
        ({"mode": "session"}, "tool.mode is 'session', must be program with sandbox_fusion_url"),
        ({"default_timeout": 86_400.0}, "tool.default_timeout is 86400, must be at most 86355 with sandbox_fusion_url"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        CodeInterpreterConfig(**{"sandbox_fusion_url": "http://x/run_code"} | settings).validate()


def test_absent_package_is_one_sentence_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"tool\.sandbox_fusion_url needs aiohttp: run `pip install 'fairbox\[gateway\]'`"
    ):
        CodeInterpreterConfig(sandbox_fusion_url="https://x/run_code").validate()


async def test_a_tasks_workspace_is_refused_by_name_and_branches_share_nothing() -> None:
    async with sandbox() as service, interpreter_at(service.url) as tool:
        with pytest.raises(InfraError, match="names a workspace, which code at sandbox_fusion_url can't have"):
            await tool.create("t", workspace={"local_path": "/srv/x"})
        await tool.create("t")
        await tool.branch("t", ["u"])
        assert (await tool.execute("u", {"code": "print(42)"})).text == "42"
        await tool.release("t")
    with pytest.raises(RuntimeError, match="outside its `async with` block"):
        await run(tool)


async def test_trainers_tools_pass_the_url_on() -> None:
    async with sandbox() as service:
        settings = InterpreterSettings(sandbox_fusion_url=service.url, enable_global_rate_limit=False)
        tools = SharedTools(settings)
        (response,) = await tools.answer("t", [ToolCall("code_interpreter", {"code": "print(6 * 7)"}, "")])
        await tools.release("t")
        await close_shared()
    assert (response.text, service.asked[0]["code"]) == ("42", "print(6 * 7)")


async def test_compilers_words_and_signals_reach_the_model(caplog: pytest.LogCaptureFixture) -> None:
    broken = ran(return_code=1, stdout="", stderr="main.cpp:1: error")
    late = ran(status="TimeLimitExceeded", return_code=None, stdout="half", stderr=None)
    given = [
        reply("Failed", compile_result=broken, run_result=None),
        reply("Failed", compile_result=late, run_result=None),
        reply("Failed", compile_result=ran(), run_result=ran(return_code=-11)),
        reply("Failed", run_result=late),
        reply("Failed", run_result=ran(return_code=137, stderr="gone\n"), outcome=["MEMORY_LIMIT"], reason=None),
        reply(run_result=ran(stdout=None, stderr=None), surprise={"nested": [1, 2]}),
    ]
    async with sandbox(*[answers(200, each) for each in given]) as service, interpreter_at(service.url) as tool:
        found = [await run(tool) for _ in given]
    assert [(each.text, each.outcome) for each in found] == [
        ("main.cpp:1: error\n[compile error]", ToolOutcome.PROGRAM_ERROR),
        ("half\n[compile error]", ToolOutcome.PROGRAM_ERROR),
        ("42\n[ended by signal 11]", ToolOutcome.PROGRAM_ERROR),
        ("half\n[Killed: the program ran for longer than 20 s.]", ToolOutcome.TIME_LIMIT),
        ("42\ngone", ToolOutcome.PROGRAM_ERROR),
        ("[no output]", ToolOutcome.OK),
    ]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# Whole rollouts


TASK = Task("u", ({"role": "user", "content": "What is 6 times 7?"},), "42", "seed", "here:1")
TURNS = (f"First.\n{tool_call('code_interpreter', code='print(6 * 7)')}", "#### 42")


async def played(
    service: Sandbox, tokenizer: HubTokenizer, chat: ChatTemplate, count: int, **settings: Any
) -> list[TrajectoryResult]:
    """Results of so many trajectories of one scripted call."""
    async with adaptive_limiter(2) as limiter, interpreter_at(service.url, limiter, **settings) as tool:
        engine = ScriptedEngine(tokenizer, TURNS, vocab_size=49152)
        loop = AgentLoop(engine, chat, Toolbox([tool]), Limits(), SamplingParams())
        done = await roll_out(
            loop,
            lambda task, result: gsm8k_reward(result.final_text, task.ground_truth),
            [TASK],
            retries=1,
            concurrency=count,
            samples_per_prompt=count,
        )
        await until(lambda: limiter.statistics().held == limiter.statistics().queued == 0, within=30)
        return [result for _, result in done]


async def test_trajectories_are_scored_by_what_the_service_answers(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    async with sandbox() as service:
        results = await played(service, tokenizer, chat, 6)
    assert {result.stop_reason for result in results} == {StopReason.ANSWERED}
    assert [[call.text for call in result.tool_calls] for result in results] == [["42"]] * 6
    assert [result.reward.value for result in results if result.reward is not None] == [1.0] * 6
    assert service.most <= 2


async def test_trajectories_that_the_service_fails_are_masked(tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
    busy = answers(503, {"detail": "the service's own words"})
    async with sandbox(*[busy] * 1000) as service:
        results = await played(service, tokenizer, chat, 2, outage_timeout=1.0)
    assert [asked["code"] for asked in service.asked].count("print(6 * 7)") == 4, "two calls each, before the outage"
    for result in results:
        assert (result.masked, result.cause, result.stop_reason) == (True, Cause.INFRA, StopReason.INFRA)
        assert result.reward is None
        assert "the service's own words" in str(result.error)
        assert "the service's own words" not in str(result.messages)


async def test_trajectories_that_the_service_failed_are_played_again_behind_the_outage(
    tokenizer: HubTokenizer, chat: ChatTemplate
) -> None:
    async with sandbox(*[answers(503, {"detail": "busy"})] * 7) as service:
        results = await played(service, tokenizer, chat, 2)
    assert [(result.masked, result.attempts) for result in results] == [(False, 2)] * 2
    codes = [asked["code"] for asked in service.asked]
    # The first probe may come before the last of the calls that fail, which are four.
    behind = Counter(codes[:8]) == {"print(6 * 7)": 4, "pass": 4} and codes[7] == "pass"
    assert behind, "nothing but probes until one was answered"


async def test_a_service_that_refuses_the_probes_program_is_there() -> None:
    failed, refused = answers(503, {"detail": "busy"}), answers(413, {"detail": "too large"})
    async with sandbox(failed, failed, refused) as service, interpreter_at(service.url) as tool:
        with pytest.raises(InfraError):
            await tool.execute("t", {"code": "print(1)"})
        await asyncio.wait_for(tool.ready(), 30)
    assert [asked["code"] for asked in service.asked][-1] == "pass"


async def test_a_run_needs_no_executor(tmp_path: Path, model_dir: Path) -> None:
    async with sandbox() as service, adaptive_limiter() as limiter:
        words = [f"tool.sandbox_fusion_url={service.url}", f"limiter={limiter.address}", "executor=127.0.0.1:1"]
        few = ["n=3", "limits.max_turns=2", "limits.max_turn_tokens=96", f"out={tmp_path}"]
        command = scripted_command(tmp_path, *words, *few)
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
        _, errors = await asyncio.wait_for(process.communicate(), 300)
        assert process.returncode == 0, errors.decode()
        await until(lambda: limiter.statistics().held == 0, within=30)
    records = list(read_dump(tmp_path / "1.jsonl"))
    assert [record["masked"] for record in records] == [False] * 3
    calls = [call for record in records for call in record["tool_calls"] if call["outcome"] == "ok"]
    assert [call["text"] for call in calls] == ["42"] * len(service.asked)
    assert calls


async def test_up_starts_a_limiter_that_gives_such_leases() -> None:
    async with sandbox() as service:
        config = RolloutConfig(up=True, tool=CodeInterpreterConfig(sandbox_fusion_url=service.url, default_timeout=5.0))
        environment = Gsm8kEnvironment(Gsm8kConfig(), EnvironmentSetup())
        async with (
            open_services(config, environment, tool_specs(config), Console(quiet=True)) as (limiter, _),
            CodeInterpreter(config.tool, limiter=limiter) as tool,
        ):
            assert (await run(tool)).text == "42"
