"""Engines that are sglang servers, and the servers that fairbox starts on this machine."""
