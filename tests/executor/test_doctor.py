"""`fairbox doctor` on this machine, for each kind of user and restriction, beside a server that is started there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from executor_service.machine.facts import MAX_USER_NAMESPACES
from executor_service.v1 import executor_pb2 as pb
from rollout.cli import main
from rollout.cli.executor import doctor
from tests.executor.levels import ENV, HOME, PREFIX, PYTHON
from tests.executor.servers import ROOT, command, running

NO_NAMESPACES = [
    *PREFIX, "unshare", "--user", "--map-root-user", "sh", "-c",
    'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh",
]  # fmt: skip
NO_SYSADMIN = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
FILTER = """
import os, sys, pyseccomp
rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
rules.add_rule(pyseccomp.ERRNO(1), "unshare")
rules.load()
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Forbids `unshare` to what it starts, as a container's default profile does."""


def filtered() -> list[str]:
    assert PYTHON is not None
    return [*PREFIX, PYTHON, "-c", FILTER]


def examined(*settings: str, prefix: list[str], python: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report."""
    words = [
        *prefix,
        python,
        "-m",
        "executor_service.machine.doctor",
        "--json",
        "languages=python",
        "cgroups=none",
        *settings,
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=HOME, env=os.environ | ENV)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def finding(report: dict[str, Any], question: str) -> dict[str, str]:
    (found,) = (each for each in report["findings"] if each["question"] == question)
    return dict(found)


def test_it_says_what_is_here_and_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    groups = Path("/proc/self/cgroup").read_text()
    assert main(["doctor", f"scratch={tmp_path}"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} <= {"yes", "partly", "no", "change:"}
    assert any(line.startswith("yes     executor") and "starts, at level namespaces" in line for line in lines)
    assert list(tmp_path.iterdir()) == []
    assert Path("/proc/self/cgroup").read_text() == groups
    assert not list(Path("/sys/fs/cgroup").glob(f"*/fairbox-{os.getpid()}"))


def test_a_mistake_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "pyhton=3"]) == 2
    assert "did you mean python?" in capfd.readouterr().err


def test_elsewhere_it_says_that_an_executor_needs_linux(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert doctor.main(["--json"]) == 1
    assert "needs Linux" in finding(json.loads(capsys.readouterr().out), "kernel")["sentence"]


def test_what_keeps_the_executor_from_looking_at_all_is_said_as_the_server_says_it() -> None:
    code, report = examined("python=/nowhere/python", prefix=[], python=PYTHON or "")
    words, _, _ = command("python=/nowhere/python")
    refused = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert code == 1
    assert finding(report, "executor")["sentence"] in refused.stderr


RESTRICTED = {
    "no-namespaces": f"{MAX_USER_NAMESPACES} (0)",
    "no-unshare": "a seccomp filter is on this process",
    "no-sysadmin": "root needs CAP_SYS_ADMIN",
}
"""Environments in which namespaces can't be made, and the cause that the sentence about each names."""


@pytest.mark.skipif(PYTHON is None, reason="no interpreter that an ordinary user may start, or no setpriv")
@pytest.mark.parametrize("who", ["root", "user", *RESTRICTED])
def test_a_server_takes_the_level_or_refuses_with_the_same_words(who: str) -> None:
    if who in ("root", "no-sysadmin") and os.geteuid() != 0:
        pytest.skip("takes root")
    prefix = {"root": [], "user": PREFIX, "no-namespaces": NO_NAMESPACES, "no-sysadmin": NO_SYSADMIN}.get(
        who, filtered()
    )
    assert PYTHON is not None
    code, report = examined(f"python={PYTHON}", prefix=prefix, python=PYTHON)
    assert code == (0 if any(report["levels"].values()) else 1)
    assert report["levels"]["namespaces"] is (who not in RESTRICTED), report
    settings = ["cgroups=none", f"python={PYTHON}", "min_isolation=landlock"]
    if code == 0:
        with running(*settings, prefix=prefix, python=PYTHON, env=ENV, cwd=HOME) as server:
            found = server.status().isolation_levels
        names = {pb.IsolationLevel.Name(each.level).removeprefix("ISOLATION_LEVEL_").lower(): each for each in found}
        assert {name: each.available for name, each in names.items()} == report["levels"]
    if who not in RESTRICTED:
        assert (report["level"], finding(report, "executor")["answer"]) == ("namespaces", "yes")
        return
    # No less than that level is what a server takes if nothing is said.
    words, _, _ = command(*settings[:2], python=PYTHON)
    env = os.environ | ENV
    refused = subprocess.run([*prefix, *words], capture_output=True, text=True, timeout=60, cwd=HOME, env=env)
    sentence, said = refused.stderr.splitlines()[-1], finding(report, "namespaces")
    assert sentence.startswith("executor: isolation level 'namespaces' does not work here")
    assert said["sentence"] in sentence
    assert said["remedy"] in sentence
    assert RESTRICTED[who] in said["sentence"]
    assert (report["level"], finding(report, "executor")["answer"]) == ("", "no")


def test_the_profile_that_it_names_is_there() -> None:
    profile = (ROOT / "deploy" / "apparmor" / "fairbox").read_text()
    assert "profile fairbox @PYTHON@ flags=(unconfined) {\n  userns,\n" in profile
