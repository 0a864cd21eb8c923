"""What limiter, executors, rollout services and a training run are doing now: asked for, and said."""
