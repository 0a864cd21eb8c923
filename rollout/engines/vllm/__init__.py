"""Engines that are vLLM servers."""
