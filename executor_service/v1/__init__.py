"""Generated stubs of the package `executor_service.v1`; `make proto` rewrites them."""
