"""Repositories for code search: fetched once, verified, kept as bare mirrors that the executor mounts."""

from rollout.data.repos.mirror import FailureKind, RepoError
from rollout.data.repos.store import Checkout, Progress, RepoStore, Want, check_template, fetch_all, row_want

__all__ = [
    "Checkout",
    "FailureKind",
    "Progress",
    "RepoError",
    "RepoStore",
    "Want",
    "check_template",
    "fetch_all",
    "row_want",
]
