"""Benchmarks: each prints a table and writes `benchmarks/out/NAME.json`, a list of figures."""

import fairbox.net.service_process  # noqa: F401 - peers and floors have the same gRPC as the services
