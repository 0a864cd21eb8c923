"""The plugin of verifiers with the id `fairbox-verifiers`. Its code is in `rollout.interop.verifiers`."""

from rollout.interop.verifiers.harness import FairboxHarness
from rollout.interop.verifiers.taskset import FairboxTaskset

__all__ = ["FairboxHarness", "FairboxTaskset"]
