"""Journals of runs: a run that was cut off goes on where it was, and samples no turn twice."""

from rollout.journal.entries import Answered, Ended, Opened, Rewarded, Sampled
from rollout.journal.run_journal import RunJournal, open_journal
from rollout.journal.store import NAME, Durability, JournalError, begun
from rollout.journal.trajectory_journal import OtherTask, TrajectoryJournal, Unrecorded

__all__ = [
    "NAME",
    "Answered",
    "Durability",
    "Ended",
    "JournalError",
    "Opened",
    "OtherTask",
    "Rewarded",
    "RunJournal",
    "Sampled",
    "TrajectoryJournal",
    "Unrecorded",
    "begun",
    "open_journal",
]
