"""Formats in which models write their tool calls. Pure."""
