"""Everything that makes the fork of a worker, and the first moments of its program, cheaper."""
