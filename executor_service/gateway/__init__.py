"""SandboxFusion's HTTP interface in front of this executor, for clients that speak nothing else.

It translates and decides nothing about running: what arrives here goes through the same queue, limits and sandbox as a
gRPC call. It needs aiohttp (extra `gateway`), and is imported only where `gateway_listen` is set.
"""

from executor_service.gateway.executions import Executions
from executor_service.gateway.server import Gateway

__all__ = ["Executions", "Gateway"]
