"""The engine in this process: a transformers model, a batch and a thread of its own."""
