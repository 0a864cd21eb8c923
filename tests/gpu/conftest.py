"""The device, and the model and the batch that the tests of training share."""

from __future__ import annotations

import pytest

from tests.rollout.training.conftest import mini_dir, practice_dir, sampled_batch, sampled_results

__all__ = ["mini_dir", "practice_dir", "sampled_batch", "sampled_results"]


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    """Tells who asked for these tests why they can't run."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")
    if not torch.cuda.is_available():
        pytest.fail(f"torch {torch.__version__} sees no GPU")
