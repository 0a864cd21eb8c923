"""What pip installs, and the pages' commands with it. Downloads packages; started by `make test-install`."""
