"""Programs that try to get at more than they should, against real servers of every level that this machine offers.

docs/explanation/security.md says what each level stops; a line there is a test here or in its neighbours. A hole that a
level is known to have is a test that is expected to fail, strictly.
"""
