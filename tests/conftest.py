"""Generated examples are the same in every run of `make test`, so that a run says something about a change; `make soak`
looks for new ones. No deadline for a single example: nothing is timed in tests."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("explore" if os.environ.get("FAIRBOX_EXPLORE") else "steady")
