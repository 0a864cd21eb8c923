"""Workspaces: folders that are prepared once for a tenant, mounted into its runs, and removed when nobody uses them."""
