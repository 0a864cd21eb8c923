"""`python -m rollout.cli`, the same as `fairbox`."""

import sys

from rollout.cli import main

sys.exit(main())
