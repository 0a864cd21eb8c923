"""Frames, orders and answers: all that the server and the processes of a sandbox must agree on."""
