"""A policy and problems to try a training set-up with: small enough to learn to use a tool in minutes, on a CPU.

`python -m examples.practice out=FOLDER` writes them; docs/how-to/training.md says what to expect. The model knows how
to call the code interpreter and seldom does. The problems can't be solved without it, so the reward rises from about
0.1 to above 0.9 if everything works: rollouts, sandbox, limiter, rewards, masks, logprobs, losses, weight sync.

It is no benchmark of a trainer, and no model for anything else.
"""

from examples.practice.folder import write_practice
from examples.practice.problems import Problem, draw, held_out, row_of
from examples.practice.warm_up import WarmUp

__all__ = ["Problem", "WarmUp", "draw", "held_out", "row_of", "write_practice"]
