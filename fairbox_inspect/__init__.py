"""The sandbox provider `fairbox` of inspect_ai: each sample has a shell session of an executor.

inspect_ai finds `fairbox_inspect.sandbox` by the entry point; importing it loads neither gRPC nor a client.
"""

from fairbox_inspect.config import FairboxSandboxConfig

__all__ = ["FairboxSandboxConfig"]
