"""Generated stubs of the package `fairbox.v1`; `make proto` rewrites them."""
