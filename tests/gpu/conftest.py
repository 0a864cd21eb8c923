"""The device, and the model and the batch that the tests of training share."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from tests.rollout.training.conftest import (  # noqa: E402 - needs torch
    mini_dir,
    practice_dir,
    sampled_batch,
    sampled_results,
)

__all__ = ["mini_dir", "practice_dir", "sampled_batch", "sampled_results"]


@pytest.fixture(scope="session", autouse=True)
def gpu() -> str:
    """The first GPU; who asked for these tests hears why they can't run."""
    if not torch.cuda.is_available():
        pytest.fail(f"torch {torch.__version__} sees no GPU")
    return "cuda"
