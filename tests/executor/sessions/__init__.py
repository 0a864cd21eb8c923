"""Sessions on real servers, at every isolation level that this machine can offer."""
