"""Generated stubs of the package `rollout.v1`; `make proto` rewrites them."""
