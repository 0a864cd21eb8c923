"""Asks limiter, executors and rollout services what they are doing now, and says it."""
