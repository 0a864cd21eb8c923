"""Commands of the executor, each as a process of its own: this one may be of a machine that could not run it."""
