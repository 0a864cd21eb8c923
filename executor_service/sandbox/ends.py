"""What one more process in a box talks through: the same that a worker has, made by the server and given to it."""

from __future__ import annotations

import os
import socket

__all__ = ["new_ends"]


def new_ends(owner: int | None) -> tuple[list[int], list[int]]:
    """Descriptors of socket, stdout and stderr: ours, and those for the process. The caller closes them.

    `owner`: uid that shall be able to open the pipes by their names.
    """
    data, data_end = socket.socketpair()
    ours, theirs = [data.detach()], [data_end.detach()]
    for _ in range(2):
        reader, writer = os.pipe2(os.O_CLOEXEC)
        if owner is not None:
            os.fchown(writer, owner, owner)
        ours.append(reader)
        theirs.append(writer)
    return ours, theirs
