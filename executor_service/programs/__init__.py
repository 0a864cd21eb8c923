"""Single programs: how a request becomes a plan for a sandbox, what is compiled for it, and what its end is called."""
