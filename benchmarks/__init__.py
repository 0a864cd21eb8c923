"""Benchmarks: each prints a table and writes `benchmarks/out/NAME.json`, a list of figures."""
