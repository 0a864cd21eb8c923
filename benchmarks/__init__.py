"""Benchmarks: each prints a table and writes `benchmarks/out/NAME.json`, a list of figures."""

from fairbox.net.service_process import choose_listener

choose_listener()  # peers and floors have the same gRPC as the services
