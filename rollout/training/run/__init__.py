"""A training run from its settings to its end: everything that is opened, the loop, and its figures."""
