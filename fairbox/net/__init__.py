"""Servers and clients on the network: ports, channels, the shells of gRPC and HTTP servers."""
