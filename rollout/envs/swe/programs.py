"""The three programs of a grading: they look at the untouched image, take what an agent changed, and run the tests.

Each runs in a sandbox of its own and uses a repository of its own beside the image's, `/sandbox/git`, which has the
image's objects and nothing else of it: no hook, filter, attribute, driver or index counts that the image's repository
or an agent has set. Files are taken byte for byte as they are on disk, unless a `.gitignore` of the tree names them.

Invariants: an agent's code runs in the second program, where it can only change the difference that is taken, and in
the tests of the third; what the first says is true. A difference is applied by the third, in the task's own image,
where the paths that it touches are read from the tree that git made of it and not from its text.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor_service import InputFile, Limits
from rollout.envs.swe.canary import Canary
from rollout.envs.swe.commands import SuitePlan
from rollout.envs.swe.rows import MAX_PATCH_BYTES

STATE, HEAD, UNCLEAN, CHANGE, DROPPED, OUTPUT = (
    "state",
    "head",
    "unclean.patch",
    "change.patch",
    "dropped",
    "output.txt",
)
"""Files that programs return: how it went; the tree of the image's commit; what the image has beside it; what an agent
changed; the number of changes that do not count; what the tests printed."""
MAX_UNCLEAN_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 8 << 20
"""The end of what tests print; reports stand there."""
RUNNERS_NAMES = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pth", "*.pyc"),
)
"""Names of files by which a test runner can be taken over, wherever they are; they do not count in a difference. A
`.pyc` takes the place of a test file whose time and size it names."""
RUNNERS_PATHS = ("*.egg-info/entry_points.txt", "*.dist-info/entry_points.txt")
_PREPARE_S = 180.0
"""Wall time of the two programs that run no tests; big repositories take seconds."""
_COMMON = """\
fail() { printf %s "$1" > /sandbox/state; exit 9; }
clean() { env -u GIT_INDEX_FILE -u GIT_OBJECT_DIRECTORY -u GIT_ALTERNATE_OBJECT_DIRECTORIES -u GIT_NAMESPACE \\
  LC_ALL=C GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_COUNT=0 HOME=/nonexistent "$@"; }
g() { clean GIT_DIR=/sandbox/git GIT_WORK_TREE="$top" GIT_INDEX_FILE=/sandbox/index git -c core.hooksPath=/dev/null \\
  -c core.fsmonitor= -c core.attributesFile=/dev/null -c core.excludesFile=/dev/null -c core.autocrlf=false \\
  -c core.quotePath=true -c safe.directory='*' -c gc.auto=0 -c core.fileMode=true -c core.symlinks=true "$@"; }
difference() { g diff-tree -r -p --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color "$1" "$2"; }
own() { clean git -c safe.directory='*' -C "$top" "$@"; }
begin() {
  cd -- "$top" || fail no-folder
  objects=$top/.git/objects
  [ -d "$objects" ] || objects=$(cd -- "$(own rev-parse --git-common-dir)" && pwd -P)/objects
  [ -d "$objects" ] || fail no-repository
  clean git init -q --bare --template= /sandbox/git || fail no-git
  mkdir -p /sandbox/git/objects/info /sandbox/git/info
  printf '%s\\n' "$objects" > /sandbox/git/objects/info/alternates
  printf '%s\\n' '* -text -filter -ident -working-tree-encoding !diff' > /sandbox/git/info/attributes
}
"""
_UNTOUCHED = """\
begin
head=$(own rev-parse --verify -q 'HEAD^{tree}') || fail no-commit
g read-tree "$head" && g add -A && base=$(g write-tree) || fail no-tree
difference "$head" "$base" > /sandbox/unclean.patch || fail no-tree
if [ -s /sandbox/test.patch ]; then
  why=$(g apply --cached --whitespace=nowarn /sandbox/test.patch 2>&1 | head -c 500; exit "${PIPESTATUS[0]}") ||
    fail "the test patch does not apply: $why"
fi
printf %s "$head" > /sandbox/head
printf ready > /sandbox/state
"""
_TAKE = """\
begin
g read-tree "$head" || fail no-base
if [ -s /sandbox/unclean.patch ]; then g apply --cached --whitespace=nowarn /sandbox/unclean.patch || fail no-base; fi
base=$(g write-tree) && g add -A && after=$(g write-tree) || fail no-tree
difference "$base" "$after" | head -c "$most" > /sandbox/change.patch
[ "${PIPESTATUS[0]}" = 0 ] || [ -s /sandbox/change.patch ] || fail no-difference
printf ready > /sandbox/state
"""
_GRADE = """\
prepare() (
LC_ALL=C
begin
declare -A protected
while IFS= read -r -d '' path; do protected["/$path"]=1; done < /sandbox/protected
drops() {
  case ${path##*/} in @NAMES@) return 0;; esac
  case $path in @PATHS@) return 0;; esac
  [ -n "${protected["/$path"]-}" ]
}
g read-tree "$head" && g add -A && base=$(g write-tree) && cp /sandbox/index /sandbox/index.base || fail no-tree
if [ -s /sandbox/change.patch ]; then
  g apply --cached --whitespace=nowarn $direction /sandbox/change.patch || fail does-not-apply
fi
after=$(g write-tree) && g diff-tree -r -z --raw --no-renames "$base" "$after" > /sandbox/changes || fail does-not-apply
count=0
: > /sandbox/restored
while IFS= read -r -d '' about && IFS= read -r -d '' path; do
  if drops; then
    set -- $about
    count=$((count + 1))
    printf '%s %s\\t%s\\0' "${1#:}" "$3" "$path" >> /sandbox/restored
  fi
done < /sandbox/changes
printf %s "$count" > /sandbox/dropped
if [ "$count" != 0 ]; then g update-index -z --index-info < /sandbox/restored || fail does-not-apply; fi
kept=$(g write-tree) || fail does-not-apply
if [ "$kept" = "$base" ] && [ -z "$untouched" ]; then fail no-change; fi
if [ -s /sandbox/test.patch ]; then
  g apply --cached --whitespace=nowarn /sandbox/test.patch || fail does-not-apply
fi
final=$(g write-tree) && cp /sandbox/index.base /sandbox/index || fail does-not-apply
g read-tree --reset -u "$base" "$final" || fail does-not-apply
)
prepare || exit 0
rm -rf /sandbox/git /sandbox/index* /sandbox/*.patch /sandbox/protected /sandbox/changes /sandbox/restored
cd -- "$top"
@CANARY@
rm -rf /sandbox/canary
printf ran > /sandbox/state
bash /sandbox/run.sh > /sandbox/printed.txt 2>&1 < /dev/null
tail -c @MOST@ /sandbox/printed.txt > /sandbox/output.txt
exit 0
"""


@dataclass(frozen=True, slots=True)
class RepositoryTests:
    """The tests of a task: a row's, with the settings of a run."""

    plan: SuitePlan
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    working_dir: str
    """The repository's folder in the image."""
    setup: str
    """Bash commands before the tests, such as activating an environment."""
    timeout_s: float


@dataclass(frozen=True, slots=True)
class GradingProgram:
    """A program of a grading, ready to run in an image."""

    image: str
    code: str
    timeout_s: float
    files: Sequence[InputFile]
    return_paths: Sequence[str]

    def options(self, env: Mapping[str, str], memory_bytes: int) -> dict[str, Any]:
        """Arguments of `ExecutorClient.execute`, beside the code. `memory_bytes` 0: the executor's own limit."""
        most = MAX_PATCH_BYTES + MAX_OUTPUT_BYTES + (1 << 16)
        return {
            "language": "bash",
            "image": self.image,
            "user": "root",
            "env": env,
            "files": self.files,
            "return_paths": self.return_paths,
            "limits": Limits(wall_time_s=self.timeout_s, memory_bytes=memory_bytes, return_bytes=most),
        }


@dataclass(frozen=True, slots=True)
class ImageBase:
    """The repository of an untouched image."""

    head: str
    """Id of the tree of its commit."""
    unclean: bytes
    """A difference from that tree to the files of the image; mostly empty."""


def look_at(tests: RepositoryTests, image: str) -> GradingProgram:
    """Finds the commit of an untouched image, and whether the test patch fits it."""
    files = [InputFile("test.patch", tests.test_patch.encode())]
    return GradingProgram(image, _text(tests, _UNTOUCHED), _PREPARE_S, files, (STATE, HEAD, UNCLEAN))


def take_change(tests: RepositoryTests, base: ImageBase, image: str) -> GradingProgram:
    """Takes the difference between an untouched image and what an agent made of it."""
    files = [InputFile(UNCLEAN, base.unclean)]
    code = _text(tests, _TAKE, head=base.head, most=str(MAX_PATCH_BYTES + 1))
    return GradingProgram(image, code, _PREPARE_S, files, (STATE, CHANGE))


def run_tests(
    tests: RepositoryTests,
    base: ImageBase,
    image: str,
    change: bytes,
    canary: Canary,
    *,
    untouched: bool = False,
    reverse: bool = False,
) -> GradingProgram:
    """Applies a difference in the task's image, or undoes it (`reverse`), then runs the tests. `untouched`: without any
    difference, too."""
    protected = b"".join(path.encode() + b"\0" for path in tests.plan.protected)
    run = f"{tests.setup}\n{tests.plan.line([canary.target])}\n"
    files = [
        InputFile(CHANGE, change),
        InputFile("test.patch", tests.test_patch.encode()),
        InputFile("protected", protected),
        InputFile("run.sh", run.encode()),
        *(InputFile(f"canary/{number}", content) for number, content in enumerate(canary.files.values())),
    ]
    code = (
        _GRADE.replace("@NAMES@", "|".join(RUNNERS_NAMES))
        .replace("@PATHS@", "|".join(RUNNERS_PATHS))
        .replace("@CANARY@", _planting(canary))
        .replace("@MOST@", str(MAX_OUTPUT_BYTES))
    )
    flags = {"untouched": "1" if untouched else "", "direction": "-R" if reverse else ""}
    code = _text(tests, code, head=base.head, **flags)
    return GradingProgram(image, code, tests.timeout_s, files, (STATE, DROPPED, OUTPUT))


def _planting(canary: Canary) -> str:
    lines = []
    for number, path in enumerate(canary.files):
        target = shlex.quote(path)
        lines.append(f'mkdir -p -- "$(dirname -- {target})" && cp -- /sandbox/canary/{number} {target}')
    return "\n".join(lines)


def _text(tests: RepositoryTests, program: str, **values: str) -> str:
    given = {"top": tests.working_dir, **values}
    return "".join([*(f"{name}={shlex.quote(value)}\n" for name, value in given.items()), _COMMON, program])
