"""Connects this process to a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from fairbox.errors import FairboxError
from fairbox.extras import require

_WORKERS = {"worker_process_setup_hook": "fairbox.user_code.find_user_code_in_worker"}


def ray_sentence(error: BaseException) -> str:
    """The line of what Ray says, which is pages long, that says most, and the error's kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Of an exception in the worker the last line says which.
    line = (lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]) if lines else ""
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


@contextlib.contextmanager
def ray_cluster(address: str, *, what: str) -> Iterator[None]:
    """Ray is initialised within it, and ended on leaving unless it was before. `what` needs it. Raises FairboxError
    where Ray is not installed, no cluster answers at `address`, or none starts."""
    require(what, "ray", "ray")
    import ray

    if ray.is_initialized():
        yield
        return
    # Ray's own 30 s are too few for the first start of a cluster on a machine that has other things to do.
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")
    try:
        ray.init(address=address, configure_logging=False, log_to_driver=False, runtime_env=_WORKERS)
    except (ConnectionError, ValueError, RuntimeError) as error:
        ray.shutdown()  # ends what a cluster that did not start has left
        hint = "" if address == "local" else "; ray_address=local starts one on this machine"
        raise FairboxError(f"no Ray cluster at ray_address={address}: {error}{hint}") from None
    try:
        yield
    finally:
        ray.shutdown()
