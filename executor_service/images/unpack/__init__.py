"""Writes one layer of an image to a folder, in a process of its own."""
