"""`python -m tests.rollout.swe.fetch_sdists FOLDER`: fetches what sdists.txt names from PyPI, once, by pip.

pip builds the metadata of what it fetches, which runs code of the archive, and for old ones may fail with the tools of
today: those are named, and left out.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LIST = Path(__file__).with_name("sdists.txt")
_FETCH_S = 180.0


def wanted() -> dict[str, str]:
    """Requirement -> SHA-256 of its source archive."""
    lines = [line.split() for line in LIST.read_text().splitlines() if not line.startswith("#")]
    return dict(lines)


def present(folder: Path) -> dict[str, Path]:
    """Requirement -> the archive in the folder that has its hash."""
    digests = {digest: requirement for requirement, digest in wanted().items()}
    found = {}
    for path in sorted(folder.glob("*.tar.gz")):
        requirement = digests.get(hashlib.sha256(path.read_bytes()).hexdigest())
        if requirement is not None:
            found[requirement] = path
    return found


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for requirement in wanted().keys() - present(folder).keys():
        with tempfile.TemporaryDirectory() as place:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
            try:
                done = subprocess.run(
                    [*pip, "--dest", place, requirement], capture_output=True, text=True, timeout=_FETCH_S
                )
                problem = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            except subprocess.TimeoutExpired:
                problem = f"took longer than {_FETCH_S:g} s"
            for path in Path(place).iterdir():
                if hashlib.sha256(path.read_bytes()).hexdigest() == wanted()[requirement]:
                    (folder / path.name).write_bytes(path.read_bytes())
                else:
                    problem = f"{path.name} has another hash than sdists.txt says"
        if problem:
            print(f"{requirement}: {re.sub(r'[^ -~]', ' ', problem)}")  # noqa: T201 - a command
    print(f"{len(present(folder))} of {len(wanted())} archives in {folder}")  # noqa: T201
    return 0 if present(folder) else 1


if __name__ == "__main__":
    sys.exit(main())
