"""An evaluation of inspect_ai in a process of its own: `python -m tests.interop.inspect_eval SANDBOX SAMPLES LOGS`.

It prints what became of each sample. Nothing of fairbox is imported: inspect finds the provider by its entry point.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash


def says(messages: list[Any], *_: Any) -> ModelOutput:
    """A model that asks for a product in a shell, and answers with what the shell says."""
    last = messages[-1]
    if isinstance(last, ChatMessageTool):
        said = last.error.message if last.error else last.text.strip()
        output = ModelOutput.from_content("mockllm", f"It is {said}.")
    else:
        command = f"echo '{last.text}' > question; sleep 1; cat question; whoami; echo $(({last.text}))"
        output = ModelOutput.for_tool_call("mockllm", "bash", {"command": command})
    output.usage = ModelUsage()  # else it counts tokens, with a table that it would fetch
    return output


def main(sandbox: str, samples: int, logs: str) -> None:
    task = Task(
        dataset=[
            Sample(
                input=f"{n} * 7",
                target=f"{n} * 7\nagent\n{n * 7}",
                files={"given": f"{n}"},
                setup=f'test "$(cat given)" = {n}',
            )
            for n in range(samples)
        ],
        solver=[use_tools(bash(timeout=60)), generate()],
        scorer=includes(),
        sandbox=("fairbox", sandbox),
    )
    model = get_model("mockllm/model", custom_outputs=says)
    (log,) = evaluate(task, model=model, max_samples=samples, max_connections=samples, log_dir=logs, display="none")
    found = [
        {
            "error": None if each.error is None else each.error.message,
            "said": each.output.completion,
            "score": (each.scores or {})["includes"].value if each.error is None else None,
        }
        for each in log.samples or ()
    ]
    sys.stdout.write(json.dumps({"status": log.status, "samples": found}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
