"""Grading of candidates: cases and verdicts, plain values, comparison, and the rules for verdicts.

Pure, and shared by server and client. What runs is in `verification`, `guest.serve.candidate` and
`guest.serve.checker`.
"""
