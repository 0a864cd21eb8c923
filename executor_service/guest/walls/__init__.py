"""Walls that no program gets past, and the folders that it is left with."""
