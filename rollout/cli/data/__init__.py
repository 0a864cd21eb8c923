"""`fairbox data`: makes files of rows."""
