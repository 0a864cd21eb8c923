"""Workspaces where nothing can be mounted."""

from __future__ import annotations
