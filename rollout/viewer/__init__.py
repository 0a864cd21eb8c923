"""Reads dumps of trajectories as a person does: rows, turns, tokens, groups, changes between steps.

Everything here but `app`, `screens` and `widgets` is without a terminal and without Textual: an index of a dump that is
larger than memory, filters, groups, search and comparison can be used from a notebook or a script.
"""
