"""SandboxFusion's HTTP interface in front of this executor, for clients that speak nothing else.

It translates and decides nothing about running: what arrives here goes through the same queue, limits and sandbox as a
gRPC call. It needs aiohttp and pydantic (extra `gateway`); `service` imports the rest if `gateway_listen` is set.
"""
