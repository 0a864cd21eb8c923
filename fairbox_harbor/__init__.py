"""An environment of Harbor: `harbor run -e fairbox_harbor:FairboxEnvironment` gives trials sandboxes of an executor.

Harbor needs Python 3.12 or newer, and so does this package; nothing of fairbox imports it.
"""

from fairbox_harbor.environment import FairboxEnvironment, FairboxOptions

__all__ = ["FairboxEnvironment", "FairboxOptions"]
