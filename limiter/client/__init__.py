"""The limiter's clients: `LimiterClient` for those who ask, `ExecutorSession` for those who run."""
