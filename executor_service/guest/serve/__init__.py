"""Services of an interpreter in a sandbox: the cells of a session, a candidate, a check."""
