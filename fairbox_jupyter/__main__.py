"""`python -m fairbox_jupyter install` lists the kernel for Jupyter; Jupyter itself starts it without `install`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from ipykernel.kernelapp import IPKernelApp
from jupyter_client.kernelspec import KernelSpecManager

from fairbox_jupyter.kernel import FairboxKernel


def _install(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairbox_jupyter install",
        description="Lists the kernel for Jupyter. What follows -- goes to the kernel, for example "
        "--FairboxKernel.target=executor:50051 --FairboxKernel.profile=python-science.",
    )
    parser.add_argument("--name", default="fairbox", help="name of the kernel (fairbox)")
    parser.add_argument("--display-name", default="Python (fairbox)", help="its name for people (Python (fairbox))")
    parser.add_argument("--prefix", default="", help="a folder such as sys.prefix; without it the user's own")
    parser.add_argument("options", nargs="*", help="options of the kernel, behind --")
    given = parser.parse_args(arguments)
    spec = {
        "argv": [sys.executable, "-m", "fairbox_jupyter", "-f", "{connection_file}", *given.options],
        "display_name": given.display_name,
        "language": "python",
        "interrupt_mode": "message",  # a signal would meet this process, and not the cell
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(spec, indent=1))
        where = KernelSpecManager().install_kernel_spec(
            folder, given.name, user=not given.prefix, prefix=given.prefix or None
        )
    sys.stdout.write(f"{where}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["install"]:
        _install(sys.argv[2:])
    else:
        IPKernelApp.launch_instance(kernel_class=FairboxKernel)
