"""Makes a repository at a commit into a folder: a program of its own, started for each preparation.

Everything here but `spec` runs in that program (`bootstrap`), never in the server: it reads repositories that nobody
vouches for, and bundles, which anybody may send, in a sandbox alone. It uses the standard library alone, so that it
starts in milliseconds and runs where nothing else of this package is.
"""
