"""Tests of the rewards of code search."""
