"""One server for all tests of a row."""

from tests.executor.conftest import executor, server

__all__ = ["executor", "server"]
