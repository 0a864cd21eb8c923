"""Isolation: runs one program in namespaces of its own and reports what it did.

`Host` says what this machine offers, found out once at start; `Sandbox` outlives the programs that run in it.
"""
