"""Code that the three tiers share: configuration, errors, clocks and the shell of a gRPC server.

Invariants: it imports no tier and no heavy library; it holds no business rule of any tier.
"""
