"""Checks what trainers send, and makes tasks of it. Pure.

Invariant: what passes here can be played: its problem is there, or its prompt has messages that a chat template may
take. Whether the template does take it, and how long it is, is the loop's to say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from fairbox.net.fields import Fields
from rollout.loop.task import Task
from rollout.service.store import Submitted
from rollout.tokens.tokenizer import Message
from rollout.v1 import rollout_pb2 as pb

MAX_TASKS = 1_000
"""Tasks of one request."""
MAX_IDS = 10_000
"""Ids of one request."""
MAX_UNACKNOWLEDGED = 10_000
UNACKNOWLEDGED = 64
"""Trajectories that a stream sends ahead, unless it says another number."""
_LONGEST_TEXT = 1 << 20
"""Characters."""
_LONGEST_SEED = 2**63 - 1
MAX_TEMPERATURE = 10
"""As the setting `sampling.temperature` has it."""
MAX_STALENESS = 1_000
"""Updates of the weights whose order is known."""
_ROLES = ("system", "user", "assistant", "tool")


def problem_digest(problem: Task) -> bytes:
    """The digest of a problem, by which it is asked for, and by which another one in its place is noticed."""
    return _digest(json.dumps([[*map(dict, problem.messages)], problem.ground_truth]).encode())


class ProblemSet:
    """The problems of an environment, by number and by digest. Of those with one digest the first is meant."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self._digests = [problem_digest(each) for each in tasks]
        self._numbers = {digest: number for number, digest in reversed([*enumerate(self._digests)])}

    def __len__(self) -> int:
        return len(self.tasks)

    def number(self, task: pb.TrajectoryTask) -> int | None:
        """The number of the problem that a task names; None: there is none, or it names none."""
        match task.WhichOneof("task"):
            case "problem":
                return task.problem if task.problem < len(self.tasks) else None
            case "problem_digest":
                return self._numbers.get(task.problem_digest)
        return None

    def digest(self, task: pb.TrajectoryTask) -> bytes:
        """The digest of the problem that a task names; empty: there is none, or it names none."""
        number = self.number(task)
        return b"" if number is None else self._digests[number]


def checked(tasks: Sequence[pb.TrajectoryTask], *, problems: ProblemSet) -> list[Submitted]:
    """The tasks as they are kept. Raises FieldErrors."""
    fields = Fields()
    if not 1 <= len(tasks) <= MAX_TASKS:
        fields.refuse("tasks", f"has {len(tasks)} entries, must have 1 to {MAX_TASKS}")
    seen: dict[str, int] = {}
    for number, task in enumerate(tasks[:MAX_TASKS]):
        where = f"tasks[{number}]"
        _check_task(fields, where, task, problems)
        if task.id in seen:
            fields.refuse(f"{where}.id", f"is {task.id[:40]!r}, which tasks[{seen[task.id]}] has too")
        seen.setdefault(task.id, number)
    fields.check()
    return [submitted(task, problems) for task in tasks]


def _check_task(fields: Fields, where: str, task: pb.TrajectoryTask, problems: ProblemSet) -> None:
    fields.identifier(f"{where}.id", task.id)
    fields.text(f"{where}.group", task.group, longest=128)
    fields.text(f"{where}.data_source", task.data_source, longest=128)
    fields.text(f"{where}.ground_truth", task.ground_truth, longest=_LONGEST_TEXT)
    if task.seed > _LONGEST_SEED:
        fields.refuse(f"{where}.seed", f"is {task.seed}, must be at most {_LONGEST_SEED}")
    if not 0 <= task.temperature <= MAX_TEMPERATURE:
        fields.refuse(f"{where}.temperature", f"is {task.temperature:g}, must be from 0 to {MAX_TEMPERATURE}")
    if task.max_staleness > MAX_STALENESS:
        fields.refuse(f"{where}.max_staleness", f"is {task.max_staleness}, must be at most {MAX_STALENESS}")
    match task.WhichOneof("task"):
        case "problem":
            if problems.number(task) is None:
                fields.refuse(f"{where}.problem", f"is {task.problem}, must be below {len(problems)}")
        case "problem_digest":
            if problems.number(task) is None:
                given = task.problem_digest[:4].hex()
                fields.refuse(f"{where}.problem_digest", f"is {given}..., which no problem of this service's data has")
        case "prompt":
            _check_prompt(fields, f"{where}.prompt.messages", task.prompt)
        case _:
            fields.refuse(where, "has neither problem, problem_digest nor prompt, must have one of them")
    if task.WhichOneof("task") != "prompt":
        for name in ("ground_truth", "data_source"):
            if getattr(task, name):
                fields.refuse(f"{where}.{name}", "is set beside a problem, which has its own")


def _check_prompt(fields: Fields, where: str, prompt: pb.Prompt) -> None:
    if not prompt.messages:
        fields.refuse(where, "is empty, must have at least one message")
    for number, message in enumerate(prompt.messages):
        if message.role not in _ROLES:
            must = f"must be one of {', '.join(_ROLES)}"
            fields.refuse(f"{where}[{number}].role", f"is {message.role[:40]!r}, {must}")
        fields.text(f"{where}[{number}].content", message.content, longest=_LONGEST_TEXT)


def submitted(task: pb.TrajectoryTask, problems: ProblemSet) -> Submitted:
    """The task as it is kept. Its digest is also that of its problem."""
    data = task.SerializeToString(deterministic=True)
    return Submitted(task.id, _digest(data, problems.digest(task)), data)


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def task_of(message: pb.TrajectoryTask, problems: ProblemSet) -> Task:
    """The task to be played."""
    group, number = message.group or message.id, problems.number(message)
    if number is not None:
        return replace(problems.tasks[number], uid=group)
    return Task(
        uid=group,
        messages=messages_of(message.prompt),
        ground_truth=message.ground_truth,
        data_source=message.data_source,
        where=f"trajectory {message.id}",
    )


def messages_of(prompt: pb.Prompt) -> tuple[Message, ...]:
    """A prompt as chat templates take it."""
    return tuple({"role": each.role, "content": each.content} for each in prompt.messages)


def check_ids(ids: Sequence[str], *, least: int = 1) -> None:
    """Raises FieldErrors."""
    fields = Fields()
    if not least <= len(ids) <= MAX_IDS:
        fields.refuse("ids", f"has {len(ids)} entries, must have {least} to {MAX_IDS}")
    fields.check()


def check_tenant(tenant: str) -> None:
    """Raises FieldErrors."""
    fields = Fields()
    fields.text("tenant", tenant, longest=128)
    fields.check()


def unacknowledged(opening: pb.StreamOpening) -> int:
    """Most that the stream may send ahead. Raises FieldErrors."""
    fields = Fields()
    most = fields.count(
        "open.max_unacknowledged", opening.max_unacknowledged, default=UNACKNOWLEDGED, most=MAX_UNACKNOWLEDGED
    )
    fields.text("open.tenant", opening.tenant, longest=128)
    fields.text("open.name", opening.name, longest=128)
    fields.check()
    return most
