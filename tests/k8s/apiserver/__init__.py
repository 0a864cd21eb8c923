"""A Kubernetes API server for tests, in process: strict where a real one is strict.

`ApiServer` serves it over HTTPS to an unmodified kubectl, to pods and to clients; `Api` is the core without a network.
By hand: `python -m tests.k8s.apiserver KUBECONFIG` writes that file and serves until it is interrupted.
"""

from __future__ import annotations

from tests.k8s.apiserver.api import Api, Request, Response
from tests.k8s.apiserver.server import ApiServer

__all__ = ["Api", "ApiServer", "Request", "Response"]
