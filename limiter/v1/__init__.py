"""Generated stubs of the package `limiter.v1`; `make proto` rewrites them."""
