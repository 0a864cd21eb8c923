"""TLS, tokens, and connections that mean harm, on the real services."""
