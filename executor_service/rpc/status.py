"""The answer of GetStatus: what the server is, has and does at one instant."""

from __future__ import annotations

from executor_service.config import ExecutorConfig
from executor_service.machine.languages import Capabilities
from executor_service.model import IsolationLevel
from executor_service.programs.compiler import Compiler
from executor_service.runs.leases import LeaseGate
from executor_service.runs.queue import ExecutionQueue
from executor_service.sandbox.pool import SandboxPool
from executor_service.sessions.sessions import Sessions
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import level_to_proto, to_message
from fairbox.v1.common_pb2 import SecurityStatus


def status(
    config: ExecutorConfig,
    name: str,
    version: str,
    runs: ExecutionQueue,
    sessions: Sessions,
    boxes: SandboxPool,
    compiler: Compiler,
    gate: LeaseGate,
    capabilities: Capabilities,
    kept: tuple[pb.WorkspaceStatus, pb.ImageStatus | None],
    uptime_s: float,
    security: SecurityStatus,
) -> pb.GetStatusResponse:
    found, policy = runs.statistics(), config.policy()
    rest = pb.GetStatusResponse(
        version=version,
        served_by=name,
        isolation_level=level_to_proto(capabilities.level),
        min_isolation_level=level_to_proto(IsolationLevel(config.min_isolation)),
        isolation_levels=[
            pb.IsolationStatus(
                level=level_to_proto(facts.level),
                available=facts.available,
                reason=facts.reason,
                landlock_version=facts.landlock,
            )
            for facts in capabilities.levels
        ],
        languages=capabilities.languages,
        profiles=_profiles(boxes),
        outcomes={outcome.name: number for outcome, number in runs.tally.outcomes().items()},
        deduplicated_total=runs.deduplicated_total,
        default_limits=to_message(pb.Limits, policy.defaults),
        max_limits=to_message(pb.Limits, policy.maxima),
        limiter=gate.status(),
        sessions=len(sessions.table.live),
        draining=runs.draining,
        uptime_s=uptime_s,
        insecure=config.insecure,
        compile_cache=compiler.status(),
        workspaces=kept[0],
        images=kept[1],
        security=security,
    )
    found.MergeFrom(rest)
    return found


def _profiles(boxes: SandboxPool) -> list[pb.ProfileStatus]:
    return [
        pb.ProfileStatus(
            name=profile,
            language="python",
            packages=boxes.packages(profile),
            ready=pool.ready,
        )
        for profile, pool in sorted(boxes.statistics().items())
    ]
