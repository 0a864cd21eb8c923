"""Execution tier: runs untrusted programs in isolation and says what became of them."""
