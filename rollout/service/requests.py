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
_ROLES = ("system", "user", "assistant", "tool")


def digests(problems: Sequence[Task]) -> list[bytes]:
    """Digests of an environment's problems, by which others in their places are noticed."""
    return [_digest(json.dumps([[*map(dict, each.messages)], each.ground_truth]).encode()) for each in problems]


def checked(tasks: Sequence[pb.TrajectoryTask], *, problems: Sequence[bytes]) -> list[Submitted]:
    """The tasks as they are kept. `problems` are `digests`. Raises FieldErrors."""
    fields = Fields()
    if not 1 <= len(tasks) <= MAX_TASKS:
        fields.refuse("tasks", f"has {len(tasks)} entries, must have 1 to {MAX_TASKS}")
    seen: dict[str, int] = {}
    for number, task in enumerate(tasks[:MAX_TASKS]):
        where = f"tasks[{number}]"
        _check_task(fields, where, task, len(problems))
        if task.id in seen:
            fields.refuse(f"{where}.id", f"is {task.id[:40]!r}, which tasks[{seen[task.id]}] has too")
        seen.setdefault(task.id, number)
    fields.check()
    return [submitted(task, problems) for task in tasks]


def _check_task(fields: Fields, where: str, task: pb.TrajectoryTask, problems: int) -> None:
    fields.identifier(f"{where}.id", task.id)
    fields.text(f"{where}.group", task.group, longest=128)
    fields.text(f"{where}.data_source", task.data_source, longest=128)
    fields.text(f"{where}.ground_truth", task.ground_truth, longest=_LONGEST_TEXT)
    if task.seed > _LONGEST_SEED:
        fields.refuse(f"{where}.seed", f"is {task.seed}, must be at most {_LONGEST_SEED}")
    match task.WhichOneof("task"):
        case "problem":
            if task.problem >= problems:
                fields.refuse(f"{where}.problem", f"is {task.problem}, must be below {problems}")
            for name in ("ground_truth", "data_source"):
                if getattr(task, name):
                    fields.refuse(f"{where}.{name}", "is set beside problem, which has its own")
        case "prompt":
            _check_prompt(fields, f"{where}.prompt.messages", task.prompt)
        case _:
            fields.refuse(where, "has neither problem nor prompt, must have one of them")


def _check_prompt(fields: Fields, where: str, prompt: pb.Prompt) -> None:
    if not prompt.messages:
        fields.refuse(where, "is empty, must have at least one message")
    for number, message in enumerate(prompt.messages):
        if message.role not in _ROLES:
            must = f"must be one of {', '.join(_ROLES)}"
            fields.refuse(f"{where}[{number}].role", f"is {message.role[:40]!r}, {must}")
        fields.text(f"{where}[{number}].content", message.content, longest=_LONGEST_TEXT)


def submitted(task: pb.TrajectoryTask, problems: Sequence[bytes]) -> Submitted:
    """The task as it is kept. Its digest is also that of its problem."""
    data = task.SerializeToString(deterministic=True)
    own = problems[task.problem : task.problem + 1] if task.WhichOneof("task") == "problem" else ()
    return Submitted(task.id, _digest(data, *own), data)


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def task_of(message: pb.TrajectoryTask, problems: Sequence[Task]) -> Task:
    """The task to be played."""
    group = message.group or message.id
    if message.WhichOneof("task") == "problem":
        return replace(problems[message.problem], uid=group)
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
    fields.check()
    return most
