"""Sessions: interpreters that live from cell to cell, and branches of them."""
