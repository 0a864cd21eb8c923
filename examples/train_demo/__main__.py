"""`make train-demo`: trains SmolLM2-135M with LoRA on sums, draws its curve and says whether the reward rose.

`python -m examples.train_demo [key=value ...]`; the settings are those of `fairbox train`. Ends with 1 where the last
quarter of the steps is not above the first by three standard errors.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from examples.train_demo.curve import draw, read_figures, rise_of
from examples.train_demo.sums import write_sums

SETTINGS = {
    "env": "examples.train_demo.sums:Sums",
    "steps": "32",
    "prompts_per_step": "16",
    "samples_per_prompt": "4",
    "policy.lora_rank": "16",
    "policy.micro_tokens": "1024",
    "update.lr": "2e-4",
    "limits.max_response_tokens": "8",
    "concurrency": "64",
    "engine.max_batch": "64",
    "eval_n": "64",
    "eval_every": "8",
}
"""64 trajectories of some 60 tokens a step, of sixteen sums, so that a step is not much easier than the next."""
LARGEST = 20
"""Upper bound of both numbers; sums beyond 40 are too hard to begin with."""
HELD_OUT = 64
WANTED = 3.0
"""Standard errors."""


def main(argv: Sequence[str]) -> int:
    """Exit code."""
    settings = SETTINGS | {"out": f"out/train-demo-{time.strftime('%Y%m%d-%H%M%S')}"}
    for word in argv:
        name, equals, value = word.partition("=")
        if not equals:
            print(f"train-demo: {word!r}, must be key=value", file=sys.stderr)
            return 2
        settings[name] = value
    out, began = Path(settings["out"]), time.monotonic()
    train, held_out = out / "sums.jsonl", out / "held-out.jsonl"
    write_sums(train, held_out, largest=LARGEST, count=HELD_OUT, seed=1)
    settings = {"data": str(train), "eval_data": str(held_out)} | settings
    words = [f"{name}={value}" for name, value in settings.items()]
    print("fairbox train --up", *words, flush=True)
    code = subprocess.run([sys.executable, "-P", "-m", "rollout.cli", "train", "--up", *words], check=False).returncode
    if code != 0:
        return code
    minutes = (time.monotonic() - began) / 60
    figures = read_figures(out / "metrics.jsonl")
    rise = rise_of([line["reward"] for line in figures if line.get("reward") is not None])
    draw(figures, out / "curve.png", title="SmolLM2-135M learns to add (GRPO, LoRA)")
    print(
        f"reward of the first quarter {rise.first:.3f}, of the last {rise.last:.3f}: {rise.errors:.1f} standard errors"
    )
    print(f"{minutes:.1f} minutes; the curve: {out / 'curve.png'}")
    return 0 if rise.errors >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
