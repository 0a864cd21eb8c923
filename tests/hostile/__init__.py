"""Whatever is sent leaves the services as they were: a table of inputs, and inputs that are generated."""
