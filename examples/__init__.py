"""Programs to copy from: what fairbox can do that is no part of it."""
