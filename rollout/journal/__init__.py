"""Journals of runs: a run that was cut off goes on where it was, and samples no turn twice."""

from rollout.journal.entries import Answered, Ended, Opened, Rewarded, Sampled
from rollout.journal.run_journal import RunJournal, open_journal
from rollout.journal.store import NAME, Durability, JournalError
from rollout.journal.trajectory_journal import TrajectoryJournal, Unrecorded

__all__ = [
    "NAME",
    "Answered",
    "Durability",
    "Ended",
    "JournalError",
    "Opened",
    "Rewarded",
    "RunJournal",
    "Sampled",
    "TrajectoryJournal",
    "Unrecorded",
    "open_journal",
]
