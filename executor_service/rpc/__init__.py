"""The executor over gRPC: thin servicers. They check requests, hand them on, name every error, and decide nothing."""
