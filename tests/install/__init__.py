"""Packages as pip installs them, and the pages' commands run with them. Downloads packages; started by `make
test-install`."""
