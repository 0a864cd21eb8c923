"""`python -m tests.limiter.sim SEED [LAST] [--trace] [--faults a,b]`: replays a seed, or all from SEED to LAST."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.limiter.sim.scenario import Fault, draw
from tests.limiter.sim.simulation import simulate


def main() -> int:
    """0 when all is well, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.limiter.sim", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--digest", action="store_true", help="print the hash of each history, and nothing else")
    parser.add_argument("--faults", default="", help="draw from these faults alone, separated by commas")
    arguments = parser.parse_args()
    faults = [Fault(name) for name in arguments.faults.split(",") if name] or None
    logging.disable()
    counts: Counter[str] = Counter()
    bad = 0
    began = time.process_time()
    seeds = range(arguments.seed, (arguments.last or arguments.seed) + 1)
    for seed in seeds:
        verdict = simulate(draw(seed, faults), _say if arguments.trace else None)
        counts += verdict.counts
        if arguments.digest:
            _say(f"{seed} {verdict.digest}")
        if verdict.violations:
            bad += 1
            if not arguments.digest:
                _say(str(verdict))
    if arguments.digest:
        return 1 if bad else 0
    for what, count in sorted(counts.items()):
        _say(f"{count:8} {what}")
    _say(f"{bad} of {len(seeds)} seeds have failed, {time.process_time() - began:.1f} s of CPU")
    return 1 if bad else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
