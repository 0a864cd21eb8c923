"""Tools from a file: verl's format, every key checked, classes of fairbox's kind and of verl's."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from examples.tool import SearchTool
from fairbox.errors import ConfigError
from rollout.tools import BranchRefused, InfraError, Tool, Toolbox, ToolCall, ToolOutcome
from rollout.tools.code import CodeInterpreter, CodeInterpreterConfig
from rollout.tools.code.bash import BashTool
from rollout.tools.code.client import ToolServices
from rollout.tools.finish import FinishTool
from rollout.tools.gsm8k_reward import Gsm8kRewardTool
from rollout.tools.registry.registry import common_rate_limit, load_tools, open_tools
from rollout.tools.registry.schema_file import read_schema
from rollout.tools.registry.verl_tool import VerlTool

HERE = "tests.rollout.test_registry"
INTERPRETER = "rollout.tools.code.CodeInterpreter"
SCHEMA = """
      type: function
      function:
        name: {name}
        description: A tool for executing code.
        parameters:
          type: object
          properties: {{{reads}: {{type: string, description: The code to execute., enum: null}}}}
          required: [{reads}]
        strict: false
"""


class GuessTool:
    """As a user of verl writes it: no import of verl, its four methods, state by instance_id."""

    made: ClassVar[list[GuessTool]] = []

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.config, self.tool_schema = config, tool_schema
        self.name = tool_schema.function.name
        self.instances: dict[str, dict[str, Any]] = {}
        self.log: list[str] = []
        GuessTool.made.append(self)

    async def create(
        self, instance_id: str | None = None, ground_truth: str = "", **kwargs: Any
    ) -> tuple[str, SimpleNamespace]:
        assert instance_id is not None
        self.instances[instance_id] = {"truth": ground_truth, "guesses": 0}
        self.log.append("create")
        return instance_id, SimpleNamespace(text=None, image=None, video=None)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[SimpleNamespace, float, dict[str, Any]]:
        state = self.instances[instance_id]
        state["guesses"] += 1
        if parameters["guess"] == "crash":
            raise KeyError("a defect")
        right = parameters["guess"] == state["truth"]
        media = [object()] if right else None
        return SimpleNamespace(text="right" if right else "wrong", image=media, video=None), float(right), {"n": 1}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 1.0 / int(self.instances[instance_id]["guesses"])

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        del self.instances[instance_id]
        self.log.append("release")


def file(folder: Path, text: str) -> Path:
    path = folder / "tools.yaml"
    path.write_text(text)
    return path


def services() -> ToolServices:
    return ToolServices(executor="127.0.0.1:1", limiter="127.0.0.1:1")


def entry(class_name: str, config: str = "{}", schema: str = "") -> str:
    tool_schema = f"    tool_schema:{schema}" if schema else ""
    return f"tools:\n  - class_name: {class_name}\n    config: {config}\n{tool_schema}"


def test_verls_own_example_loads_with_the_class_changed(tmp_path: Path) -> None:
    """The settings of verl's example for its SandboxFusionTool."""
    config = (
        "{sandbox_fusion_url: 'https://x.example/run_code', "
        "num_workers: 7, enable_global_rate_limit: true, rate_limit: 9, default_timeout: 30, "
        "default_language: python, memory_limit_mb: 1024, type: native}"
    )
    (spec,) = load_tools(file(tmp_path, entry(INTERPRETER, config, SCHEMA.format(name="python", reads="code"))))
    assert spec.config == CodeInterpreterConfig(
        num_workers=7, rate_limit=9, memory_limit_mb=1024, sandbox_fusion_url="https://x.example/run_code"
    )
    assert spec.schema is not None
    assert spec.schema.openai()["function"]["name"] == "python"
    assert "enum" not in spec.schema.openai()["function"]["parameters"]["properties"]["code"]


async def test_tools_of_a_file_are_opened_with_shared_clients_and_closed(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "a cat"}\n')
    gsm8k = "rollout.tools.gsm8k_reward.Gsm8kRewardTool, config: {type: native, not_improved: -0.1}"
    text = (
        f"tools:\n  - class_name: {INTERPRETER}\n    config: {{mode: session, enable_global_rate_limit: false}}\n"
        "  - class_name: rollout.tools.code.BashTool\n    config: {enable_global_rate_limit: false}\n"
        f"  - class_name: examples.tool.SearchTool\n    config: {{corpus: {tmp_path}/corpus.jsonl}}\n"
        f"  - {{class_name: rollout.tools.finish.FinishTool, config: {{}}}}\n  - {{class_name: {gsm8k}}}\n"
    )
    async with services() as shared, open_tools(load_tools(file(tmp_path, text)), shared) as tools:
        assert [type(tool) for tool in tools] == [CodeInterpreter, BashTool, SearchTool, FinishTool, Gsm8kRewardTool]
        box = Toolbox(tools)
        assert list(box.statistics()) == ["code_interpreter", "bash", "search", "finish", "calc_gsm8k_reward"]
        assert [tool.schema for tool in tools[3:]] == [FinishTool.default_schema, Gsm8kRewardTool.default_schema]
        found = await box.answer("t", [ToolCall("search", {"query": "cat"}, "")], run=1, time_limit_s=None)
        assert found[0].text == "[1] a cat"


def test_interpolations_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKERS", "3")
    (spec,) = load_tools(file(tmp_path, entry(INTERPRETER, "{num_workers: '${oc.env:WORKERS}'}")))
    assert spec.config.num_workers == 3
    with pytest.raises(ConfigError, match="NOT_THERE"):
        load_tools(file(tmp_path, entry(INTERPRETER, "{num_workers: '${oc.env:NOT_THERE}'}")))


def test_schema_is_shown_as_it_stands_with_what_is_nested_in_it() -> None:
    queries = {"type": "array", "description": "Words.", "items": {"type": "string"}, "minItems": 1}
    parameters = {"type": "object", "properties": {"queries": queries}, "required": ["queries"]}
    function = {"name": "search", "description": "Finds.", "parameters": parameters, "strict": False}
    tree = {"type": "function", "function": function}
    assert read_schema(tree, "here").openai() == tree
    queries["items"] = {"typ": "string"}
    with pytest.raises(ConfigError, match=r"properties\.queries\.items\.typ is not a key; did you mean type"):
        read_schema(tree, "here")


BAD_SCHEMA = SCHEMA.format(name="python", reads="code")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tool: []", "tool is not a key; the file has one, tools"),
        ("tools: {}", "tools must be a list of tools"),
        ("tools: []", "tools must be a list of tools"),
        ("tools: [3]", "tools[0] is 3, must be a mapping"),
        ("tools: [{config: {}}]", "tools[0].class_name is missing"),
        ("tools: [{class_name: a.B, conf: {}}]", "tools[0].conf is not a key; did you mean config?"),
        ("tools: [{class_name: Foo}]", "tools[0].class_name is 'Foo', must be the dotted path of a class"),
        ("tools: [{class_name: nowhere.Foo}]", "tools[0].class_name is 'nowhere.Foo', which can't be imported"),
        ("tools: [{class_name: rollout.tools.code.bash.Foo}]", "but rollout.tools.code.bash has no class Foo"),
        ("tools: [{class_name: pathlib.Path}]", "tools[0].class_name is 'pathlib.Path', which is no tool"),
        (
            "tools: [{class_name: verl.tools.sandbox_fusion_tools.SandboxFusionTool}]",
            f"here {INTERPRETER} does its work",
        ),
        (entry(INTERPRETER, "3"), "tools[0].config is 3, must be a mapping"),
        (entry(INTERPRETER, "{type: mcp}"), "tools[0].config.type is 'mcp', must be native"),
        (
            entry(INTERPRETER, "{num_worker: 3}"),
            "tools[0].config.num_worker is not a setting; did you mean num_workers",
        ),
        (entry(INTERPRETER, "{num_workers: many}"), "tools[0].config.num_workers is 'many'"),
        (entry(INTERPRETER, "{num_workers: 0}"), "tools[0].config.num_workers is 0, must be at least 1"),
        (
            entry(INTERPRETER, "{sandbox_fusion_url: http://x}"),
            "tools[0].config.sandbox_fusion_url is 'http://x', has no",
        ),
        (entry("examples.tool.SearchTool"), "tools[0].config.corpus is not set"),
        (entry(INTERPRETER, "{}", " 3"), "tools[0].tool_schema is 3, must be a mapping"),
        (entry(INTERPRETER, "{}", BAD_SCHEMA.replace("name:", "nmae:")), "tool_schema.function.nmae is not a key; did"),
        (entry(INTERPRETER, "{}", BAD_SCHEMA.replace("strict: false", "strict: true")), "function.strict is True"),
        (
            entry(INTERPRETER, "{}", BAD_SCHEMA.replace("type: string", "type: text")),
            "tool_schema.function.parameters.properties.code.type is 'text', must be one of string",
        ),
        (
            entry(INTERPRETER, "{}", BAD_SCHEMA.replace("enum: null", "item: {}")),
            "tool_schema.function.parameters.properties.code.item is not a key; did you mean items?",
        ),
        (
            entry(INTERPRETER, "{}", BAD_SCHEMA.replace("required: [code]", "required: [program]")),
            "tool_schema.function.parameters.required is ['program'], must be a list of names of properties",
        ),
        (
            entry(INTERPRETER, "{}", SCHEMA.format(name="python", reads="program")),
            "tool_schema.function.parameters.properties lacks code, which the tool needs",
        ),
        (
            entry(INTERPRETER, "{}", BAD_SCHEMA.replace("type: string", "type: integer")),
            "properties.code.type is 'integer', but the tool takes 'string'",
        ),
        (
            f"tools: [{{class_name: {INTERPRETER}}}, {{class_name: {INTERPRETER}}}]",
            "tools[1] has the name 'code_interpreter', as",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_path(tmp_path: Path, text: str, problem: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        load_tools(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_programs_of_all_tools_share_one_limit(tmp_path: Path) -> None:
    two = f"tools:\n  - class_name: {INTERPRETER}\n  - class_name: rollout.tools.code.BashTool\n    config: "
    assert common_rate_limit(load_tools(file(tmp_path, two + "{rate_limit: 10}"))) == 10
    assert common_rate_limit(load_tools(file(tmp_path, two + "{rate_limit: 3, enable_global_rate_limit: false}"))) == 10
    with pytest.raises(ConfigError, match=r"tools\[1\]\.config\.rate_limit is 3, but there is one limit"):
        common_rate_limit(load_tools(file(tmp_path, two + "{rate_limit: 3}")))
    search = "tools: [{class_name: examples.tool.SearchTool, config: {corpus: x}}]"
    assert common_rate_limit(load_tools(file(tmp_path, search))) is None


# Tools of verl's kind


async def opened(tmp_path: Path, stack: AsyncExitStack) -> tuple[Tool, GuessTool]:
    text = entry(f"{HERE}.GuessTool", "{type: native, any: thing}", SCHEMA.format(name="guess", reads="guess"))
    shared = await stack.enter_async_context(services())
    (tool,) = await stack.enter_async_context(open_tools(load_tools(file(tmp_path, text)), shared))
    return tool, GuessTool.made[-1]


async def test_verl_tool_has_one_instance_for_a_trajectory(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        tool, inner = await opened(tmp_path, stack)
        assert isinstance(tool, VerlTool)
        assert inner.config == {"type": "native", "any": "thing"}
        assert inner.tool_schema.model_dump(exclude_unset=True, exclude_none=True) == tool.schema.openai()
        assert inner.tool_schema.function.parameters.required == ["guess"]
        box = Toolbox([tool])
        await box.create("t", {"guess": {"create_kwargs": {"ground_truth": "7"}}})
        calls = [ToolCall("guess", {"guess": guess}, "") for guess in ("3", "7")]
        wrong, right = await box.answer("t", calls, run=2, time_limit_s=None)
        assert (wrong.text, wrong.outcome, wrong.reward) == ("wrong", ToolOutcome.OK, 0.0)
        assert (right.text, right.reward) == ("right\n[image, 1 of them, not shown]", 1.0)
        assert await box.rewards("t") == {"guess": 0.5}
        with pytest.raises(BranchRefused, match="the tool guess can't branch"):
            await box.branch("t", ["u"])
        with pytest.raises(KeyError):
            await box.answer("t", [ToolCall("guess", {"guess": "crash"}, "")], run=1, time_limit_s=None)
        await box.release("t")
        await box.release("t")
        assert inner.log == ["create", "release"]


async def test_task_options_that_verl_does_not_have_are_refused(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        tool, _ = await opened(tmp_path, stack)
        with pytest.raises(InfraError, match="option ground_truth is '7', must be a mapping: create_kwargs"):
            await tool.create("t", ground_truth="7")


def test_verl_tool_that_can_not_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (spec,) = load_tools(file(tmp_path, entry(f"{HERE}.GuessTool")))  # no schema, which it needs
    with pytest.raises(ConfigError, match=r"tools\[0\]: GuessTool can't be made: AttributeError"):
        spec.build(services())
