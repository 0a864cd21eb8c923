"""Answers of the gateway beside turns: records, rewards, tokens, refusals; and its command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AuthenticationError

from fairbox.errors import ConfigError, FieldErrors
from rollout.capture import CaptureGateway, CaptureSettings
from rollout.capture.errors import ApiError
from rollout.capture.turns import parse_turn
from rollout.cli import main
from rollout.dump import DumpWriter, read_dump
from rollout.dump_check import contradictions
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import FORMATS
from tests.rollout.capture.gateways import CALL, QUESTION, TOOLS, client, scripted

ROOT = Path(__file__).parents[3]
TOKEN = "a-token-of-some-length"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


async def test_record_is_a_row_of_a_dump_for_each_branch(
    chat: ChatTemplate, tokenizer: HubTokenizer, tmp_path: Path
) -> None:
    async with scripted(tokenizer, chat, [CALL, "It is 3.", "Four?"]) as (gateway, _), aiohttp.ClientSession() as http:
        async with client(gateway, "task.1") as openai:
            first = await openai.chat.completions.create(model="scripted", messages=QUESTION, tools=TOOLS)
            call: Any = (first.choices[0].message.tool_calls or [])[0]
            answer: Any = {"role": "tool", "tool_call_id": call.id, "content": "3"}
            said: Any = first.choices[0].message.model_dump(exclude_none=True)
            for _ in range(2):
                await openai.chat.completions.create(model="scripted", messages=[*QUESTION, said, answer], tools=TOOLS)
        where = f"http://{gateway.address}/t/task.1"
        async with http.post(f"{where}/reward", json={"reward": 0.5}) as answered:
            assert answered.status == 200
        async with http.post(f"{where}/reward", json={"reward": "much"}) as answered:
            assert (answered.status, (await answered.json())["error"]["param"]) == (400, "reward")
        async with http.get(where) as answered:
            record = await answered.json()
        assert (record["trajectory_id"], record["reward"], record["latest"]) == ("task.1", 0.5, 1)
        rows = record["branches"]
        assert [row["branch"]["reason"] for row in rows] == ["first", "resampled"]
        assert [row["stop_reason"] for row in rows] == ["answered", "answered"]
        with DumpWriter(tmp_path, 1) as dump:
            for row in rows:
                dump.write(row)
        read = list(read_dump(tmp_path / "1.jsonl"))
        assert read == rows
        assert [contradictions(row) for row in read] == [[], []]
        tool_call = rows[0]["tool_calls"][0]
        assert (tool_call["name"], tool_call["arguments"], tool_call["text"]) == ("add", {"a": 1, "b": 2}, "3")
        found = gateway.trajectory("task.1")
        assert rows[1]["response_ids"] == list(found.branch.trajectory.response_ids)
        async with http.delete(where) as answered:
            assert await answered.json() == {"trajectory_id": "task.1", "deleted": True}
        for ask in (http.get(where), http.delete(where), http.post(f"{where}/reward", json={"reward": 1})):
            async with ask as answered:
                assert answered.status == 404
                assert (await answered.json())["error"]["code"] == "trajectory_not_found"
        async with http.get(f"http://{gateway.address}/statistics") as answered:
            figures = await answered.json()
        assert (figures["turns"], figures["branches"], figures["trajectories"], figures["deleted"]) == (3, 2, 0, 1)


async def test_what_is_no_turn_has_openais_form_of_errors(
    chat: ChatTemplate, tokenizer: HubTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2000
    monkeypatch.setattr("rollout.capture.server._MAX_BODY_BYTES", limit)
    async with (
        scripted(tokenizer, chat, ["Hi."]) as (gateway, _),
        aiohttp.ClientSession() as http,
    ):
        base = f"http://{gateway.address}"
        half = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "\ud800"}]}).encode()
        cases: list[tuple[str, str, bytes, int, str]] = [
            ("POST", "/t/a/v1/responses", b"{}", 404, "unknown_url"),
            ("GET", "/t/a/v1/chat/completions", b"", 405, "method_not_allowed"),
            ("POST", "/t/a/v1/chat/completions", b"{", 400, "invalid_json"),
            ("POST", "/t/a/v1/chat/completions", b'{"seed": NaN}', 400, "invalid_json"),
            ("POST", "/t/a/v1/chat/completions", b"[" * 1500, 400, "invalid_json"),
            ("POST", "/t/a/v1/chat/completions", b"[]", 400, "invalid_value"),
            ("POST", "/t/a/v1/chat/completions", half, 400, "invalid_value"),
            ("POST", "/t/a/v1/chat/completions", b" " * (limit + 1), 413, "request_entity_too_large"),
            ("POST", "/t/a%20b/v1/chat/completions", b"{}", 400, "invalid_trajectory"),
            ("GET", "/v1/models/other", b"", 404, "model_not_found"),
        ]
        for method, path, body, status, code in cases:
            async with http.request(method, base + path, data=body or None) as answered:
                said = await answered.json()
            assert (answered.status, said["error"]["code"]) == (status, code), (method, path)
            assert said["error"]["message"]
            assert said["fairbox"]["cause"] == "TASK"
        assert gateway.trajectory_ids() == ()
        assert gateway.statistics().running == 0


async def test_token_guards_everything_but_health(
    chat: ChatTemplate, tokenizer: HubTokenizer, token_file: Path
) -> None:
    scripting = scripted(tokenizer, chat, ["Hi."], token_file=str(token_file))
    async with scripting as (gateway, _), aiohttp.ClientSession() as http:
        async with client(gateway) as stranger:
            with pytest.raises(AuthenticationError):
                await stranger.chat.completions.create(model="scripted", messages=QUESTION)
        for path, status in (("/health", 200), ("/v1/models", 401), ("/t/t", 401), ("/statistics", 401)):
            async with http.get(f"http://{gateway.address}{path}") as answered:
                assert answered.status == status
        async with client(gateway, api_key=TOKEN) as friend:
            await friend.chat.completions.create(model="scripted", messages=QUESTION)
        with pytest.raises(FieldErrors):
            gateway.set_reward("t", float("nan"))


async def test_a_request_that_is_no_http_is_not_repeated_in_the_log(
    chat: ChatTemplate, tokenizer: HubTokenizer, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tokenizer, chat, [], token_file=str(token_file)) as (gateway, _):
        host, _, port = gateway.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\x01\r\n\r\n".encode())
        assert b" 400 " in await asyncio.wait_for(reader.readline(), 20)
        writer.close()
    assert "sent what is no HTTP" in caplog.text
    assert TOKEN not in caplog.text


async def test_idle_trajectories_are_given_up(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    async with scripted(tokenizer, chat, ["Hi."], idle_ttl_s=0.2) as (gateway, _), client(gateway) as openai:
        await openai.chat.completions.create(model="scripted", messages=QUESTION)
        async with asyncio.timeout(30):
            while gateway.trajectory_ids():
                await asyncio.sleep(0.05)
        assert gateway.statistics().expired == 1


def test_address_of_others_needs_a_token(chat: ChatTemplate, tokenizer: HubTokenizer, token_file: Path) -> None:
    engine = ScriptedEngine(tokenizer, [], vocab_size=49152)
    anywhere = CaptureSettings(listen="0.0.0.0:0")
    with pytest.raises(ConfigError, match="not loopback"):
        CaptureGateway(engine, chat, anywhere)
    CaptureGateway(engine, chat, replace(anywhere, token_file=str(token_file)))
    with pytest.raises(ConfigError, match="token_file is 'absent'"):
        CaptureGateway(engine, chat, CaptureSettings(listen="0.0.0.0:0", token_file="absent"))
    with pytest.raises(ConfigError, match="max_concurrent is 0"):
        CaptureGateway(engine, chat, CaptureSettings(max_concurrent=0))


@pytest.mark.parametrize(
    ("text", "content", "calls", "reasoning"),
    [
        ("Hello.", "Hello.", [], None),
        ("<think>\nHm.\n</think>\n\nHello.", "Hello.", [], "Hm."),
        ("Hm.\n</think>\n\nHello.", "Hello.", [], "Hm."),
        ("<think>\nHm, cut off", "", [], "Hm, cut off"),
        (f"<think>\nHm.\n{CALL}", "", [("add", '{"a": 1, "b": 2}')], "Hm.\nLet me see."),
        (f"<think>{CALL}</think>No.", "No.", [], CALL),
        (f"{CALL}\nDone?", "Let me see.\n\nDone?", [("add", '{"a": 1, "b": 2}')], None),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')], None),
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}}')], None),
        (f"No {CALL[23:]}: {CALL}", f"No {CALL[23:]}: Let me see.", [("add", '{"a": 1, "b": 2}')], None),
        ("<tool_call>\nadd(1, 2)\n</tool_call>", "<tool_call>\nadd(1, 2)\n</tool_call>", [], None),
    ],
)
def test_turns_are_taken_apart(text: str, content: str, calls: list[tuple[str, str]], reasoning: str | None) -> None:
    message = parse_turn(text, FORMATS["hermes"], TOOLS).message
    assert (message.content, message.reasoning) == (content, reasoning)
    assert [(call.name, call.arguments) for call in message.calls] == calls


@pytest.mark.parametrize(
    ("name", "text", "content", "reasoning", "arguments"),
    [
        ("qwen3_coder", "So.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
         "So.", None, ['{"a": 1}']),
        ("glm45", "<think>Hm.</think>So.<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
         "So.", "Hm.", ['{"a": 1}']),
        ("mistral", 'So.[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": 2}}]',
         "So.", None, ['{"a": 1}', '{"a": 2}']),
        ("deepseek", "Hm.</think>So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1}"
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "So.", "Hm.", ['{"a": 1}']),
        ("llama3_json", '{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 2}}',
         "", None, ['{"a": 1}', '{"a": 2}']),
        ("gpt_oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|end|>"
         '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>',
         "So.", "Hm.", ['{"a": 1}']),
        ("gpt_oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.",
         "So.", "Hm.", []),
    ],
)  # fmt: skip
def test_calls_of_other_formats_are_taken_apart_too(
    name: str, text: str, content: str, reasoning: str | None, arguments: list[str]
) -> None:
    parsed = parse_turn(text, FORMATS[name], TOOLS)
    assert (parsed.message.content, parsed.message.reasoning, parsed.problems) == (content, reasoning, ())
    assert [(call.name, call.arguments) for call in parsed.message.calls] == [("add", each) for each in arguments]


def test_causes_of_refusals() -> None:
    causes = {status: ApiError(status, "m", code="c").cause for status in (400, 404, 429, 500, 503, 504)}
    assert causes == {400: "TASK", 404: "TASK", 429: "INFRA", 500: "INFRA", 503: "INFRA", 504: "INFRA"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["listen=0.0.0.0:8081"], "listen is '0.0.0.0:8081', which is not loopback"),
        (["token_file=absent"], "token_file is 'absent', which can't be read"),
        (["idle_ttl_s=0"], "idle_ttl_s is 0.0, must be positive"),
        (["sampling.top_p=0"], "sampling.top_p is 0.0, must be above 0 and at most 1"),
        (["max_trajectory=5"], "did you mean max_trajectories?"),
    ],
)
def test_mistakes_in_settings_are_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err


async def test_command_serves_a_model_until_it_is_told_to_end(tiny_dir: Path, token_file: Path) -> None:
    words = ["listen=127.0.0.1:0", f"token_file={token_file}", f"model={tiny_dir}", "sampling.temperature=0"]
    command = [sys.executable, "-m", "rollout.cli", "capture", *words]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=os.environ | {"FAIRBOX_PARENT_PID": str(os.getpid())}, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(250):
            lines = [await process.stderr.readline() for _ in range(2)]
            url = lines[1].decode().split(" on ")[1].split(" ")[0].replace("/ID/", "/here/")
            body = {"model": tiny_dir.name, "messages": QUESTION, "max_tokens": 3}
            headers = {"Authorization": f"Bearer {TOKEN}"}
            session = aiohttp.ClientSession(headers=headers)
            async with session as http, http.post(f"{url}/chat/completions", json=body) as answered:
                said = json.loads(await answered.text())
            assert said["usage"]["completion_tokens"] == 3
            assert said["choices"][0]["finish_reason"] == "length"
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
