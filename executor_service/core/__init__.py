"""Decisions of the executor, as pure state machines: events in, decisions out; no I/O, no clock, no tasks."""
