"""Agentic code search: reports about repositories, searched with bash, answered with places."""
