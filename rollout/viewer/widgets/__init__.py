"""Widgets of the viewer's screens; they need Textual."""
