"""An agent of the OpenHands SDK on a trajectory of the capture gateway: `openhands_agent.py BASE_URL MODEL QUESTION`.

A program of its own, because the SDK needs Python 3.12 and packages of its own; docs/how-to/capture.md shows the same.
"""

from __future__ import annotations

import sys
import tempfile

from openhands.sdk import LLM, Agent, Conversation  # type: ignore[import-not-found]


def main(base_url: str, model: str, question: str) -> None:
    """Asks the agent one question and lets it run until it calls `finish`."""
    llm = LLM(
        model=f"openai/{model}",  # LiteLLM takes the part before the slash as the protocol
        base_url=base_url,
        api_key="unused",
        num_retries=0,
        native_tool_calling=True,
        reasoning_effort=None,  # a wish that no engine here can follow, so the gateway would refuse it
    )
    agent = Agent(llm=llm, tools=[])  # it has `think` and `finish` by itself
    with tempfile.TemporaryDirectory() as folder:
        conversation = Conversation(agent=agent, workspace=folder, visualizer=None)
        conversation.send_message(question)
        conversation.run()
        sys.stdout.write(f"{conversation.state.execution_status.value}\n")
        conversation.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
