"""The model that is trained, its optimizer, and one training step."""
