"""Messages of fairbox if another trainer's package is missing; until then it needs none."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec

import pytest

from fairbox.errors import FairboxError
from rollout.interop.needs import MissingPackage, needs


def test_missing_package_is_named_with_its_version() -> None:
    with (
        pytest.raises(MissingPackage, match=r"^this needs nothing 1\.2 \(pip install nothing\): No module named"),
        needs("nothing", "1.2", "pip install nothing"),
    ):
        importlib.import_module("no_such_module")
    assert issubclass(MissingPackage, FairboxError)
    assert issubclass(MissingPackage, ImportError)


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed here")
@pytest.mark.parametrize("module", ["tool", "agent_loop", "convert"])
def test_modules_for_verl_say_so(module: str) -> None:
    with pytest.raises(MissingPackage, match=r"this needs verl 0\.9\.1"):
        importlib.import_module(f"rollout.interop.verl.{module}")


@pytest.mark.skipif(find_spec("skyrl_gym") is not None, reason="skyrl-gym is installed here")
def test_environment_says_so() -> None:
    with pytest.raises(MissingPackage, match=r"this needs skyrl-gym 0\.4\.0"):
        importlib.import_module("rollout.interop.skyrl.env")


@pytest.mark.skipif(find_spec("verifiers") is not None, reason="verifiers is installed here")
@pytest.mark.parametrize("module", ["rollout.interop.verifiers.harness", "fairbox_verifiers"])
def test_plugin_of_verifiers_says_so(module: str) -> None:
    with pytest.raises(MissingPackage, match=r"this needs verifiers 0\.4\.0"):
        importlib.import_module(module)


def test_everything_else_loads_without_them() -> None:
    modules = "verl.reward, skyrl.convert, skyrl.generator, loop, portal, scores, shared, settings"
    names = ", ".join(f"rollout.interop.{name}" for name in modules.split(", "))
    heavy = ("torch", "transformers", "verl", "skyrl_train", "skyrl_gym", "ray")
    program = f"import sys, {names}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
