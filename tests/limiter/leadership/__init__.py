"""Tests of who leads."""
