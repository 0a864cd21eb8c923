"""Every run of a server: its place in the queue, its lease, its request id, and what became of it.

The decisions are pure state machines: events in, decisions out; no I/O, no clock, no tasks.
"""
