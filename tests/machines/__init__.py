"""Machines, containers and users as people have them, made here, and what the executor does in each of them."""
