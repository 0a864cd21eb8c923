"""Reactions of a box's init to orders and ends that reach it all at once, as happens after it was kept waiting.

It runs in a separate interpreter, which may reap any child, and takes a single step, because the end of a use kills
everything it can.
"""

from __future__ import annotations

import json
import subprocess
import sys

_CODE = """
import json, os, select, socket, time
from executor_service.guest.protocol.status_page import StatusPages
from executor_service.guest.lease import COUNTS_AT, LeaseDeadline
from executor_service.guest.meters import Meters
from executor_service.guest.supervisor import Around, Supervisor

server, init = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
woken, wake = os.pipe()
poll = select.poll()
poll.register(init, select.POLLIN)
poll.register(woken, select.POLLIN)
worker = os.fork()
if worker == 0:
    os._exit(3)
os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
os.write(wake, b"\\x11")
none = dict.fromkeys(("each_use", "dying", "reclaim", "oom", "processes", "cpu", "peak", "charged", "used"), "")
meters = Meters({"init": [], "attach": [], "limits": {}, **none})
page = os.memfd_create("leases")
os.ftruncate(page, COUNTS_AT + 4)
around = Around("/", None, lambda: None, None)
use = Supervisor(
    init, meters, StatusPages(), worker, (poll, woken), number=2, around=around, lease=LeaseDeadline(page, 0)
)
begin = {"type": "begin", "serves": True, "processes": 0, "tasks": 0, "disk_bytes": 0, "workspace": None}
for order in ({"type": "rest", "use": 1}, {"type": "end", "use": 1}, {**begin, "use": 2}):
    server.send(json.dumps(order).encode())
use._step()
server.settimeout(5)
print(json.dumps([json.loads(server.recv(4096)), use._reason]))
"""


def test_an_end_is_judged_by_all_that_was_ordered_before_it() -> None:
    """Orders about an earlier use stand before those that say that this one serves: its worker's exit is told, and does
    not end it."""
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told, reason = json.loads(done.stdout)
    assert (told["type"], told["main"], told["code"], told["signal"], reason) == ("exited", True, 3, 0, None)
