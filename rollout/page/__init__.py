"""A run as one page that opens from disk: figures, trajectories, tokens. Pure, but for files read and written."""

from rollout.page.writer import write_page

__all__ = ["write_page"]
