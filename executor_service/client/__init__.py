"""The executor's clients: calls and sessions, with or without an event loop, at one executor or at many."""
