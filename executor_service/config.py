"""Settings of the executor, each with its default and its meaning in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from executor_service.languages import LANGUAGES, PYTHON_BASE, PYTHON_LEAN, PYTHON_SCIENCE, LanguageSpec
from executor_service.model import IsolationLevel, Limits
from executor_service.sandbox.zygote import Profile
from executor_service.wire.validation import LimitPolicy
from fairbox.config import setting
from fairbox.errors import ConfigError
from fairbox.security import ServerSecuritySettings
from fairbox.telemetry.program import TelemetrySettings

_MIB = 1 << 20
_GIB = 1 << 30
_LEVELS = tuple(level.value for level in IsolationLevel)
"""The weakest first."""


@dataclass(frozen=True)
class LimitDefaults:
    """Limits of a request that does not name them."""

    wall_time_s: float = setting(30.0, help="Wall time of a program, seconds.")
    cpu_time_s: float = setting(60.0, help="CPU time of all its processes, seconds; at least its wall time limit.")
    memory_bytes: int = setting(1 * _GIB, help="Resident memory of all its processes.")
    processes: int = setting(64, help="Processes and threads alive at once.")
    open_files: int = setting(256, help="Open files of one process.")
    output_bytes: int = setting(1 * _MIB, help="Bytes kept of each of stdout and stderr.")
    file_bytes: int = setting(64 * _MIB, help="Size of the largest file that it may write.")
    disk_bytes: int = setting(256 * _MIB, help="Bytes in its private folders together; they live in memory.")
    return_bytes: int = setting(16 * _MIB, help="Bytes of all returned files together.")
    compile_time_s: float = setting(30.0, help="Wall time for compiling, seconds.")


@dataclass(frozen=True)
class LimitMaxima:
    """Limits that no request can exceed."""

    wall_time_s: float = setting(600.0, help="Most wall time, seconds.")
    cpu_time_s: float = setting(2400.0, help="Most CPU time, seconds.")
    memory_bytes: int = setting(16 * _GIB, help="Most resident memory.")
    processes: int = setting(1024, help="Most processes and threads.")
    open_files: int = setting(4096, help="Most open files of one process.")
    output_bytes: int = setting(16 * _MIB, help="Most bytes kept of each stream.")
    file_bytes: int = setting(1 * _GIB, help="Largest file.")
    disk_bytes: int = setting(4 * _GIB, help="Most bytes in private folders.")
    return_bytes: int = setting(64 * _MIB, help="Most bytes of returned files.")
    compile_time_s: float = setting(300.0, help="Most wall time for compiling, seconds.")


@dataclass(frozen=True)
class ProfileSettings:
    """Modules that Python programs find loaded."""

    packages: list[str] = setting(factory=list, help="Packages that are imported and used once, ahead of programs.")
    lean: bool = setting(
        False, help="No modules at all: for programs that import nothing, and for what is no Python; no sessions."
    )
    ahead: bool = setting(True, help="Load it when the server starts; false: when it is first wanted.")


def _default_profiles() -> dict[str, ProfileSettings]:
    # A program costs what its profile has loaded: twice as much for numpy with everything beside it as for numpy alone.
    return {
        PYTHON_BASE: ProfileSettings(),
        PYTHON_LEAN: ProfileSettings(lean=True),
        "python-numpy": ProfileSettings(packages=["numpy"]),
        "python-sympy": ProfileSettings(packages=["sympy"]),
        "python-pandas": ProfileSettings(packages=["numpy", "pandas"]),
        PYTHON_SCIENCE: ProfileSettings(packages=["numpy", "pandas", "scipy", "sympy", "matplotlib"]),
    }


@dataclass(frozen=True)
class ExecutorConfig(TelemetrySettings, ServerSecuritySettings):
    listen: str = setting("127.0.0.1:50051", help="Address of the gRPC service, HOST:PORT.")
    health_listen: str = setting("127.0.0.1:50061", help="Address of the health service, HOST:PORT.")
    metrics_listen: str = setting("127.0.0.1:9464", help="Address for Prometheus, HOST:PORT; empty: none.")
    metrics_tenants: int = setting(
        0, least=0, most=1000, help="Tenants with figures of their own, the first that come; others are one."
    )
    name: str = setting("", help="Name in results, status and leases; empty: host name and port.")
    gateway_listen: str = setting(
        "", help="Address of the SandboxFusion gateway, e.g. 127.0.0.1:8080: HTTP, or HTTPS with tls_cert; empty: none."
    )
    gateway_token_file: str = setting(
        "", help="Tokens of its clients, one a line as in client_token_file, which may be the same; empty: none."
    )
    gateway_queue_timeout_s: float = setting(
        18.0, above=0, help="Longest wait in the queues of its requests, seconds; less where their timeouts leave less."
    )
    limiter: str = setting("none", help="Address of the limiter, HOST:PORT, or several, with commas; none: no limit.")
    limiter_timeout_s: float = setting(10.0, above=0, help="Longest wait for the limiter to bind a lease, seconds.")
    max_connection_age_s: float = setting(
        60.0,
        least=0,
        help="Age at which clients are asked to connect anew, so that they find new servers; calls in flight end as "
        "they would. 0: never.",
    )
    max_concurrent: int = setting(
        factory=lambda: 4 * (os.cpu_count() or 1),
        least=1,
        most=4096,
        help="Most programs at once.",
        shown="4 for each processor",
    )
    max_queued: int = setting(1000, least=0, help="Most requests that wait; one more is RESOURCE_EXHAUSTED.")
    queue_timeout_s: float = setting(
        600.0, above=0, help="Longest wait in the queues, seconds; then RESOURCE_EXHAUSTED."
    )
    limits: LimitDefaults = setting(factory=LimitDefaults, help="Limits of a request that does not name them.")
    max_limits: LimitMaxima = setting(factory=LimitMaxima, help="Limits that no request can exceed.")
    isolation: str = setting(
        "auto",
        choices=("auto", *reversed(_LEVELS)),
        help="Level to run programs at: auto (the strongest that works), namespaces or landlock.",
    )
    scratch: str = setting(
        "",
        help="Level landlock: existing folder below which programs get theirs; empty: the system's temporary folder.",
    )
    min_isolation: str = setting(
        "namespaces", choices=_LEVELS, help="Level below which the server refuses to start: landlock or namespaces."
    )
    python: str = setting("", help="Interpreter for programs; empty: this server's, without its virtual environment.")
    profiles: dict[str, ProfileSettings] = setting(
        factory=_default_profiles, help="Runtime profiles; python-base is always there."
    )
    languages: str = setting(
        "", help="Languages that are offered, with ',' between them; empty: all that are installed."
    )
    toolchains: str = setting(
        "",
        help="Folders of toolchains, with ':' between them, which programs see and commands are looked for in.",
    )
    spare_boxes: int = setting(
        2, least=0, most=64, help="Workers of each profile that wait beyond what was needed lately."
    )
    max_sessions: int = setting(
        256, least=0, most=4096, help="Most sessions alive at once; one more is RESOURCE_EXHAUSTED."
    )
    tenant_weights: dict[str, float] = setting(
        factory=dict, help="Tenant -> its share of max_concurrent, max_queued and max_sessions; 1 for all others."
    )
    cgroups: str = setting(
        "auto", help="Control groups get made below: auto (the server's own), none, or a path like /fairbox."
    )
    workspace_dir: str = setting("", help="Where workspaces are kept; empty: a temporary folder of this server's life.")
    workspace_roots: list[str] = setting(
        factory=list, help="Folders below which local_path of workspaces must lie; none: refused."
    )
    remotes: list[str] = setting(
        factory=list,
        help="Beginnings of URLs from which workspaces (https://...) and images (docker://...) may be fetched; none: "
        "nothing is.",
    )
    workspace_bytes: int = setting(
        20 * _GIB, least=_MIB, help="Most bytes of all workspaces; unused ones go for new ones."
    )
    workspace_copy_bytes: int = setting(
        256 * _MIB, least=_MIB, help="Level landlock, where each run gets a copy of its workspace: most bytes of one."
    )
    workspace_timeout_s: float = setting(600.0, above=0, help="Longest preparation of a workspace, seconds.")
    image_dir: str = setting(
        "", help="Where images are kept, as `fairbox image` writes them; empty: runs can't name one."
    )
    results_dir: str = setting(
        "",
        help="Folder where results are kept for repeated requests, so that a restarted server has them; empty: it "
        "doesn't.",
    )
    max_snapshot_bytes: int = setting(
        10 * _GIB, least=0, help="Bytes in image_dir of all snapshots of sessions together; 0: none are taken."
    )
    drain_grace_s: float = setting(10.0, least=0, help="After SIGTERM running programs may go on for so long, seconds.")
    insecure: bool = setting(
        False, help="Allow listening beyond loopback although neither tokens nor tls_client_ca guard."
    )

    def validate(self) -> None:
        """ConfigError for what settings can't have together."""
        self.validate_telemetry()
        self.validate_security()
        if self.isolation in _LEVELS and _LEVELS.index(self.isolation) < _LEVELS.index(self.min_isolation):
            raise ConfigError(f"isolation is {self.isolation!r}, must be at least min_isolation ({self.min_isolation})")
        unknown = sorted(self._named() - LANGUAGES.keys())
        if unknown:
            raise ConfigError(f"languages has {unknown[0]!r}, must be some of {', '.join(LANGUAGES)}")
        if self.cgroups not in ("auto", "none") and (self.cgroups[:1] != "/" or ".." in Path(self.cgroups).parts):
            raise ConfigError(f"cgroups is {self.cgroups!r}, must be auto, none or a path like /fairbox without ..")
        for root in self.workspace_roots:
            if not Path(root).is_absolute() or not Path(root).is_dir() or Path(root).resolve() == Path("/"):
                raise ConfigError(f"workspace_roots has {root!r}, must be absolute paths of folders, and not /")
        for tenant, weight in self.tenant_weights.items():
            if not 0.001 <= weight <= 1000:
                raise ConfigError(f"tenant_weights.{tenant} is {weight}, must be from 0.001 to 1000")
        self._validate_limits()
        self._validate_profiles()

    def _validate_profiles(self) -> None:
        for name, profile in self.profiles.items():
            if profile.lean and (profile.packages or name == PYTHON_BASE):
                raise ConfigError(f"profiles.{name}.lean is true, which {PYTHON_BASE} and one with packages can't be")

    def _validate_limits(self) -> None:
        for field in fields(LimitDefaults):
            default, most = getattr(self.limits, field.name), getattr(self.max_limits, field.name)
            if not 0 < default <= most:
                raise ConfigError(
                    f"limits.{field.name} is {default}, must be above 0 and at most max_limits.{field.name} ({most})"
                )

    def offered(self) -> list[LanguageSpec]:
        """The languages to look for."""
        return [spec for name, spec in LANGUAGES.items() if not self.languages or name in self._named()]

    def promised(self) -> set[str]:
        """Languages without which the server is not ready: those that are named, else the one of requests without a
        language."""
        return self._named() or {"python"}

    def not_offered(self) -> dict[str, str]:
        """Language -> why it is not looked for."""
        names = LANGUAGES.keys() - {spec.name for spec in self.offered()}
        return dict.fromkeys(sorted(names), "the setting `languages` leaves it out")

    def toolchain_folders(self) -> list[str]:
        return [folder for folder in self.toolchains.split(":") if folder]

    def _named(self) -> set[str]:
        return {name.strip() for name in self.languages.split(",") if name.strip()}

    def policy(self) -> LimitPolicy:
        """The limits in the form that requests are checked with."""
        names = [field.name for field in fields(Limits)]
        return LimitPolicy(
            defaults=Limits(**{name: getattr(self.limits, name) for name in names}),
            maxima=Limits(**{name: getattr(self.max_limits, name) for name in names}),
        )

    def runtime_profiles(self) -> list[Profile]:
        """All profiles, the one that every program can run in first."""
        settings = {PYTHON_BASE: ProfileSettings(), **self.profiles}
        return [Profile(name, tuple(each.packages), each.lean, each.ahead) for name, each in settings.items()]
