"""The supervised warm-up of a practice policy: it learns how a call and an answer are written, and to call seldom.

Each example is a whole conversation, in the ids that a rollout would have. Most call the tool and repeat what it
answered; the others guess. How often the policy calls is decided by a turn's first id alone, so its weight in the loss
sets that: what comes behind is learned by all examples, and well, but a call is made with a probability of
`call_share`. That is what reinforcement learning then has to raise.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from examples.practice.problems import MODULUS, Problem, draw
from fairbox.config import setting
from rollout.tokens import ChatTemplate

if TYPE_CHECKING:
    import torch

_GUESSES = 8
"""One of so many examples guesses."""
_RISE = 30
"""Steps in which the learning rate rises; it falls again in the second half."""
_LEAST_RATE = 0.02
"""Share of the learning rate at the last step."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Settings of the warm-up: its length and its target."""

    steps: int = setting(300, least=1, help="Optimizer steps.")
    batch: int = setting(32, least=_GUESSES, help="Conversations of a step.")
    lr: float = setting(1e-3, above=0, help="Highest learning rate of AdamW.")
    call_share: float = setting(0.1, above=0, below=1, help="Probability of a call at the end, about.")


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation, and how much each id counts: 0 for what the policy does not say."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]


def call_text(problem: Problem, tool: str) -> str:
    """The turn that calls the tool."""
    call = json.dumps({"name": tool, "arguments": {"code": problem.code}})
    return f"<tool_call>\n{call}\n</tool_call>"


def answer_text(answer: str) -> str:
    """The turn that answers."""
    return f"#### {answer}"


class Writer:
    """Writes examples in the ids of one chat template. `tools` are OpenAI function schemas; the first is called."""

    def __init__(self, chat: ChatTemplate, tools: Sequence[Mapping[str, Any]], call_share: float) -> None:
        self._chat = chat
        self._tools = tools
        self._name = str(tools[0]["function"]["name"])
        self._call_share = call_share

    def called(self, problem: Problem, *, count: int = _GUESSES) -> Example:
        """A call, what it prints, and the answer, in a batch of `count`."""
        ids, weights = self._asked(problem)
        self._turn(ids, weights, call_text(problem, self._name), self._call_share * count / (count - _guesses(count)))
        between = self._chat.between_turns((problem.answer,), ended=True)
        ids += between
        weights += [0.0] * len(between)
        self._turn(ids, weights, answer_text(problem.answer), 1.0)
        return Example(tuple(ids), tuple(weights))

    def guessed(self, problem: Problem, generator: random.Random, *, count: int = _GUESSES) -> Example:
        """An answer without a call, in a batch of `count`."""
        ids, weights = self._asked(problem)
        first = (1 - self._call_share) * count / _guesses(count)
        self._turn(ids, weights, answer_text(str(generator.randrange(MODULUS))), first)
        return Example(tuple(ids), tuple(weights))

    def batch(self, count: int, generator: random.Random) -> list[Example]:
        """So many examples, of which one in `_GUESSES` guesses. Of the weight of first ids, those of guesses have
        1 - call_share, however many there are."""
        problems = draw(count, generator)
        return [
            self.guessed(problem, generator, count=count) if n % _GUESSES == 0 else self.called(problem, count=count)
            for n, problem in enumerate(problems)
        ]

    def _asked(self, problem: Problem) -> tuple[list[int], list[float]]:
        ids = list(self._chat.prompt_ids([{"role": "user", "content": problem.question}], self._tools))
        return ids, [0.0] * len(ids)

    def _turn(self, ids: list[int], weights: list[float], text: str, first: float) -> None:
        turn = (*self._chat.encode(text), self._chat.end_of_turn)
        ids += turn
        weights += [first, *[1.0] * (len(turn) - 1)]


def _guesses(count: int) -> int:
    """Number of guesses in a batch of `count` examples."""
    return -(-count // _GUESSES)


def warm_up(model: Any, writer: Writer, settings: WarmUp, generator: random.Random) -> float:
    """Trains the model in place; the last loss. It computes where the model is, with as many threads as torch has."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, settings.steps))
    loss = torch.tensor(float("nan"))
    for _ in range(settings.steps):
        ids, weights = _tensors(writer.batch(settings.batch, generator))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights[:, 1:].flatten()).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return float(loss.detach())


def _rate(step: int, steps: int) -> float:
    falling = 2 * max(0.0, step / steps - 0.5)
    return min(1.0, (step + 1) / _RISE) * max(_LEAST_RATE, 1 - falling)


def _tensors(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int64, weights float32), both [examples, longest], padded on the right with id 0, which weighs nothing."""
    import torch

    ids = [torch.tensor(example.ids) for example in examples]
    weights = [torch.tensor(example.weights) for example in examples]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(ids, batch_first=True), pad(weights, batch_first=True)
