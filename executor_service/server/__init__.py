"""The executor's gRPC server: thin shells around the state machines of `core` and the sandboxes of `sandbox`."""
