"""Tiers in network namespaces of their own, cut from each other while programs run. It needs root."""
