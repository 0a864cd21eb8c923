"""CPU time that the limiter takes for an acquire and its release; it is a process of its own, with the limit 10."""

from benchmarks.limiter import many, pairs

PARTS = {"pairs": pairs.rows, "many": many.rows}
