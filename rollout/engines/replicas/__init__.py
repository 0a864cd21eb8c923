"""Several engines with the same model as one."""
