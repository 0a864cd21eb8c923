"""What limiter and executors are doing: asked, and shown to people and to programs."""
