"""The screens of the viewer; needs Textual."""
