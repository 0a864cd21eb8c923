"""Logs, metrics and traces of every tier."""
