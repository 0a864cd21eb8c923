"""Stands in for sgl_kernel, whose wheels need CUDA, where sglang serves on a CPU.

Every name can be imported, and none can be called: what would need a kernel fails, and nothing is made up.
"""

__version__ = "0.4.10"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel is not installed: {name} was called")

    return absent
