"""GSM8K with its reward as a tool: what a submission gives, where that ends up, and verl's data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from fairbox.errors import ConfigError
from rollout.batch import RolloutBatch
from rollout.cli.data.command import main as data
from rollout.data import DataError, read_rows
from rollout.dump import record_of
from rollout.engines import SamplingParams
from rollout.envs import EnvironmentSetup, Gsm8kConfig, Gsm8kEnvironment, find_environment
from rollout.loop import AgentLoop, Limits, Task
from rollout.rewards import Reward
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import InfraError, Toolbox, ToolCall, ToolOutcome
from rollout.tools.gsm8k_reward import Gsm8kRewardConfig, Gsm8kRewardTool
from tests.rollout.scripted import roll_out, tool_call


@pytest.fixture
def setup(tmp_path: Path) -> EnvironmentSetup:
    """One row in a file."""
    data = tmp_path / "row.jsonl"
    data.write_text(json.dumps({"question": "What is 6 * 7?", "answer": "6 * 7\n#### 42"}))
    return EnvironmentSetup(data=data)


def main(words: list[str]) -> int:
    return data(["gsm8k", *words])


async def submitted(tool: Gsm8kRewardTool, *answers: str) -> list[float | None]:
    await tool.create("t", ground_truth="18")
    return [(await tool.execute("t", {"answer": answer})).reward for answer in answers]


async def test_a_submission_that_is_no_better_costs_a_step() -> None:
    tool = Gsm8kRewardTool()
    assert await submitted(tool, "17", "18", "18", "#### $18.00", "3") == [-0.05, 0.0, -0.05, -0.05, -0.05]
    assert await tool.calc_reward("t") == 0.0  # of the last answer
    other = Gsm8kRewardTool(Gsm8kRewardConfig(improved=0.5, not_improved=-1.0, format_score=0.1))
    assert await submitted(other, "none", "17", "16", "18") == [-1.0, 0.5, -1.0, 0.5]
    assert await other.calc_reward("t") == 1.0


async def test_the_model_reads_what_its_answer_is_worth() -> None:
    tool = Gsm8kRewardTool()
    await tool.create("t", create_kwargs={"ground_truth": "18"})  # as verl's data has it
    assert await tool.calc_reward("t") == 0.0
    response = await tool.execute("t", {"answer": "18"})
    assert (response.text, response.outcome) == ("Current parsed answer='18' reward=1.0", ToolOutcome.OK)
    assert (await tool.execute("t", {"answer": 18})).text == "Current parsed answer='18' reward=1.0"
    long = await tool.execute("t", {"answer": "9" * 5000})
    assert (long.truncated, len(long.text) < 2000, long.total_bytes) == (True, True, 5002)
    await tool.branch("t", ["u"])
    await tool.release("t")
    await tool.release("t")
    assert (await tool.execute("u", {"answer": "18"})).reward == 0.0  # better than the branch's last answer


async def test_answers_of_another_type_are_refused_before_they_count() -> None:
    tool = Gsm8kRewardTool()
    await tool.create("t", ground_truth="18")
    wrong = [ToolCall("calc_gsm8k_reward", {"answer": [18]}, "")]
    (refused,) = await Toolbox([tool]).answer("t", wrong, run=1, time_limit_s=None)
    assert (refused.outcome, refused.reward) == (ToolOutcome.BAD_ARGUMENTS, None)


@pytest.mark.parametrize("options", [{}, {"ground_truth": "many"}, {"ground_truth": 18}, {"create_kwargs": {}}])
async def test_a_task_without_a_truth_fails_before_its_first_turn(options: dict[str, Any]) -> None:
    with pytest.raises(InfraError, match="ground_truth"):
        await Gsm8kRewardTool().create("t", **options)


@pytest.mark.parametrize("turn_rewards", [True, False])
async def test_rewards_of_turns_and_of_the_answer_reach_the_batch_and_the_dump(
    tokenizer: HubTokenizer, chat: ChatTemplate, setup: EnvironmentSetup, turn_rewards: bool
) -> None:
    environment = Gsm8kEnvironment(Gsm8kConfig(prompt="submit", turn_rewards=turn_rewards), setup)
    turns = [*(tool_call("calc_gsm8k_reward", answer=answer) for answer in ("41", "42", "42")), "#### 42"]
    tool = Gsm8kRewardTool(Gsm8kRewardConfig(improved=0.25))
    engine = ScriptedEngine(tokenizer, turns, vocab_size=49152)
    loop = AgentLoop(engine, chat, Toolbox([tool]), Limits(max_turns=None), SamplingParams())
    ((task, result),) = await roll_out(loop, environment.score, environment.tasks(), concurrency=1)
    assert [each.reward for each in result.tool_calls] == [-0.05, 0.25, -0.05]
    assert result.tool_rewards == {"calc_gsm8k_reward": 1.0}
    record = record_of(result, task, step=1, model="m", decode=chat.decode_plain)
    batch = RolloutBatch.from_results([result], pad_token_id=0)
    ends = [index for index, value in enumerate(batch.token_rewards[0].tolist()) if value]
    assert all(batch.response_mask[0][index] == 1 for index in ends)
    parts = {"gsm8k": 1.0, "gsm8k/correct": 1.0, "gsm8k/answered": 1.0}
    calls = {"tool_call_rewards": 0.15, "tool_call_rewards/calls": 3.0}
    if turn_rewards:
        assert result.reward is not None
        assert batch.rewards.tolist() == pytest.approx([1.15])
        assert [batch.token_rewards[0][index].item() for index in ends] == pytest.approx([-0.05, 0.25, -0.05, 1.0])
        assert record["turn_rewards"] == [-0.05, 0.25, -0.05, 0.0]
        assert record["reward_parts"] == pytest.approx(parts | calls)
    else:
        assert result.reward == Reward(1.0, parts)
        assert (len(ends), record["turn_rewards"]) == (1, [0.0] * 4)
    assert record["score"] == pytest.approx(batch.rewards.item())


def test_prompts_of_each_style(setup: EnvironmentSetup) -> None:
    def task(prompt: str) -> Task:
        return Gsm8kEnvironment(Gsm8kConfig(prompt=prompt), setup).tasks()[0]

    assert [message["role"] for message in task("plain").messages] == ["user"]
    assert task("plain").messages[0]["content"] == (
        "What is 6 * 7? Let's think step by step and output the final answer after `####`."
    )
    submit = task("submit")
    assert [message["role"] for message in submit.messages] == ["system", "user"]
    assert submit.tools_kwargs == {"calc_gsm8k_reward": {"ground_truth": "42"}}
    with pytest.raises(DataError, match=r"row\.jsonl:1: prompt must be a list of messages"):
        task("data")
    assert task("plain").row["answer"].endswith("#### 42")


def test_prepared_data_are_verls_and_are_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "train.jsonl", tmp_path / "deep" / "train.parquet"
    rows = [{"question": f"What is {n} thousand?", "answer": f"It is {n},000.\n#### {n},000"} for n in range(1, 4)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([f"input={source}", f"out={out}", "agent_name=tool_agent"]) == 0
    assert capsys.readouterr().out == f"3 rows in {out}\n"
    first = parquet.read_table(out).to_pylist()[0]
    tools = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1000"}}}
    assert first["extra_info"] == {
        "split": "train",
        "index": 0,
        "question": "What is 1 thousand?",
        "answer": rows[0]["answer"],
        "need_tools_kwargs": True,
        "tools_kwargs": tools,
    }
    assert (first["agent_name"], first["data_source"], first["ability"]) == ("tool_agent", "openai/gsm8k", "math")
    assert first["reward_model"] == {"style": "rule", "ground_truth": "1000"}
    environment = find_environment("gsm8k").make(Gsm8kConfig(prompt="data"), EnvironmentSetup(data=out))
    task = environment.tasks()[0]
    assert (list(task.messages), task.ground_truth, task.tools_kwargs) == (first["prompt"], "1000", tools)
    assert "calc_gsm8k_reward" in task.messages[0]["content"]
    assert main([f"input={source}", f"out={out}", "tool=false", "split=x", "limit=1"]) == 0
    (plain,) = parquet.read_table(out).to_pylist()
    assert "tools_kwargs" not in plain["extra_info"]
    assert (plain["extra_info"]["split"], len(plain["prompt"])) == ("x", 1)
    assert list(tmp_path.glob("deep/*")) == [out]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["out=a.json"], "out is 'a.json', must end in .parquet"),
        (["out=a.parquet", "limit=0"], "limit is 0, must be at least 1"),
        (["out=a.parquet", "tol=false"], "did you mean tool"),
    ],
)
def test_mistakes_of_preparing_data_are_named(tmp_path: Path, words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        main([f"input={tmp_path / 'a.jsonl'}", *words])


@pytest.mark.parametrize("split", ["test", "train"])
def test_all_real_rows_are_prepared(gsm8k_test: Path, tmp_path: Path, split: str) -> None:
    source = gsm8k_test.with_name(f"{split}.jsonl")
    if not source.exists():
        pytest.skip(f"GSM8K's {split} rows are not here")
    out = tmp_path / f"{split}.parquet"
    assert main([f"input={source}", f"out={out}"]) == 0
    prepared, rows = read_rows(out), read_rows(source)
    assert [row.question for row in prepared] == [row.question for row in rows]
    assert [row.ground_truth for row in prepared] == [row.ground_truth.replace(",", "") for row in rows]
