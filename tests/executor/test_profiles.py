"""Modules that programs find loaded: profiles, the choice of one, and one that can't be loaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import pytest

from executor_service import Cause, ExecutorClient, InvalidRequest, Limits, Outcome
from tests.executor.servers import START_WITHIN_S, Server, running, wait_for

PACKAGES = ("numpy", "pandas", "scipy", "sympy", "matplotlib")
MISSING = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
WHICH = "import sys; print(sorted({name.partition('.')[0] for name in sys.modules} & " + f"set({PACKAGES})))"

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def ready(server: Server) -> set[str]:
    """The profiles that have workers which wait."""
    return {profile.name for profile in server.status().profiles if profile.ready}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    ahead = [f"profiles.python-{name}.ahead=true" for name in ("numpy", "sympy", "pandas", "science")]
    with running(f"python={sys.executable}", *ahead) as server:
        wait_for(lambda: len(ready(server)) == 2 + len(ahead), within_s=START_WITHIN_S)
        yield server


async def test_a_program_that_names_a_package_finds_it_loaded(executor: ExecutorClient) -> None:
    result = await executor.execute(f"{WHICH}  # sympy")
    assert (result.profile, result.stdout.text) == ("python-science", f"{sorted(PACKAGES)}\n")


@pytest.mark.parametrize(
    ("names", "profile"),
    [
        ("numpy", "numpy"),
        ("sympy", "sympy"),
        ("pandas", "pandas"),
        ("numpy pandas", "pandas"),
        ("numpy sympy", "science"),
        ("scipy", "science"),
    ],
)
async def test_the_smallest_profile_that_has_all_is_taken(executor: ExecutorClient, names: str, profile: str) -> None:
    found = "import sys; print([name for name in sys.argv[1:] if name not in sys.modules])"
    result = await executor.execute(f"{found}  # {names}", args=names.split())
    assert (result.profile, result.stdout.text) == (f"python-{profile}", "[]\n")


async def test_while_the_smallest_is_loaded_a_larger_one_stands_in() -> None:
    with running(f"python={sys.executable}", "profiles.python-science.ahead=true") as server:
        wait_for(lambda: "python-science" in ready(server), within_s=START_WITHIN_S)
        async with ExecutorClient(server.target) as client:
            code = "import numpy; print(1)"
            assert (await client.execute(code)).profile == "python-science"
            wait_for(lambda: "python-numpy" in ready(server), within_s=START_WITHIN_S)
            assert (await client.execute(code)).profile == "python-numpy"


async def test_a_program_that_names_none_runs_in_the_smallest_profile(executor: ExecutorClient) -> None:
    # The names are in the text of WHICH, so it is put together at run time.
    result = await executor.execute("import sys; print('num' + 'py' in sys.modules)")
    assert (result.profile, result.stdout.text) == ("python-base", "False\n")


async def test_a_request_may_name_its_profile(executor: ExecutorClient) -> None:
    chosen = await executor.execute("print(1)", profile="python-science")
    assert chosen.profile == "python-science"
    lazily = await executor.execute("import numpy; print(numpy.arange(3).sum())", profile="python-base")
    assert (lazily.profile, lazily.stdout.text) == ("python-base", "3\n")
    with pytest.raises(InvalidRequest, match="profile is 'python-magic', must be empty or 'python-base' or"):
        await executor.execute("print(1)", profile="python-magic")


async def test_a_program_that_imports_nothing_runs_in_the_lean_profile(executor: ExecutorClient) -> None:
    result = await executor.execute("print(sorted({3: 'a', 1: 'b'}), f'{2 / 3:.3f}', sum(range(4)))")
    assert (result.profile, result.stdout.text) == ("python-lean", "[1, 3] 0.667 6\n")
    modules = "len(vars(__builtins__)['__im' + 'port__']('sys').modules)"
    lean = await executor.execute(f"print({modules})")
    base = await executor.execute(f"print({modules})", profile="python-base")
    assert (lean.profile, base.profile) == ("python-lean", "python-base")
    assert int(lean.stdout.data) < int(base.stdout.data)
    for code in ("print(__import__('sys').argv[0])", "# import\nprint('main.py')"):
        assert (await executor.execute(code)).profile == "python-base"


async def test_the_lean_profile_imports_from_disk(executor: ExecutorClient) -> None:
    hidden = "exec('im' + 'port json, dataclasses, decimal; print(json.dumps([1]), decimal.Decimal(1))')"
    result = await executor.execute(hidden)
    assert (result.profile, result.stdout.text) == ("python-lean", "[1] 1\n")
    named = await executor.execute("import statistics; print(statistics.mean([1, 3]))", profile="python-lean")
    assert (named.profile, named.stdout.text) == ("python-lean", "2\n")


async def test_the_lean_profile_serves_no_cells(executor: ExecutorClient) -> None:
    shown = await executor.execute("1 + 1", display=True)
    assert (shown.profile, shown.displays[0].data["text/plain"]) == ("python-base", b"2")
    with pytest.raises(InvalidRequest, match="profile is 'python-lean', must be empty or 'python-base' or"):
        async with executor.session(profile="python-lean"):
            pass


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("import numpy as np; print(np.linalg.det(np.eye(3)))", "1.0\n"),
        ("import pandas as pd; print(pd.DataFrame({'a': [1, 2]}).a.sum())", "3\n"),
        ("import scipy.optimize as o; print(round(o.brentq(lambda x: x * x - 4, 0, 5), 6))", "2.0\n"),
        ("import sympy as sp; print(sp.integrate(sp.Symbol('x'), (sp.Symbol('x'), 0, 2)))", "2\n"),
        (
            "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.savefig('a.png');"
            "print(open('a.png', 'rb').read(4))",
            "b'\\x89PNG'\n",
        ),
    ],
)
async def test_each_package_works(executor: ExecutorClient, code: str, printed: str) -> None:
    for profile in ("", "python-science"):
        result = await executor.execute(code, profile=profile)
        assert result.stdout.text == printed, result.stderr.text


@pytest.mark.parametrize("kind", ["MT19937", "PCG64"])
async def test_random_numbers_of_numpy_differ_between_branches(executor: ExecutorClient, kind: str) -> None:
    """The second one of two normal numbers is made with the first, and kept."""
    before = f"import numpy as np; np.random.set_bit_generator(np.random.{kind}(1)); np.random.normal()"
    async with executor.session(profile="python-numpy") as session:
        assert (await session.run(before)).ok
        drawn = set()
        for branch in await session.branch(3):
            async with branch:
                result = await branch.run("print(np.random.normal(), type(np.random.get_bit_generator()).__name__)")
                number, name = result.stdout.text.split()
                assert name == kind
                drawn.add(number)
        assert len(drawn) == 3


async def test_figures_that_a_cell_leaves_open_are_displayed(executor: ExecutorClient) -> None:
    async with executor.session(profile="python-science") as session:
        draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nfigure = plt.gcf()\n1"
        displays = (await session.run(draw, limits=Limits(wall_time_s=100))).displays
        assert [set(display.data) for display in displays] == [{"text/plain"}, {"text/plain", "image/png"}]
        assert displays[0].text == "1"
        assert displays[1].data["image/png"].startswith(b"\x89PNG")
        assert (await session.run("plt.get_fignums()")).displays[0].text == "[]"
        (alone,) = (await session.run("figure")).displays
        assert set(alone.data) == {"text/plain", "image/png"}


async def test_what_one_run_does_to_a_package_is_gone_in_the_next(executor: ExecutorClient) -> None:
    await executor.execute("import numpy as np; np.pi = 3; np.set_printoptions(precision=1)")
    result = await executor.execute("import numpy as np; print(np.pi, np.array([1.2345]))")
    assert result.stdout.text == "3.141592653589793 [1.2345]\n"


async def test_a_profile_that_cannot_be_loaded_leaves_the_others_alone() -> None:
    with running("profiles.broken.packages=[no_such_package_of_ours]") as server:
        async with ExecutorClient(server.target) as client:
            assert (await client.execute("print(1)")).ok
            # All its packages are missing: that is said in status, and is no reason not to run.
            assert (await client.execute("print(1)", profile="broken")).ok
        packages = {profile.name: list(profile.packages) for profile in server.status().profiles}
        assert packages["broken"] == []


async def test_a_profile_whose_package_fails_is_refused_at_once_and_the_others_go_on() -> None:
    with running("profiles.failing.packages=[asyncio.windows_events]") as server:
        async with ExecutorClient(server.target) as client:
            refused = await client.execute("print(1)", profile="failing", call_timeout=60)
            assert (refused.outcome, refused.cause) == (Outcome.SANDBOX_ERROR, Cause.INFRA)
            assert (await client.execute("print(1)")).ok
