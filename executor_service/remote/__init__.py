"""Another service's sandbox in place of this server's own: programs are forwarded to a SandboxFusion-compatible URL.

`errors` imports nothing; `backend` needs aiohttp (extra `gateway`) and is imported only where `backend` is `remote`.
"""
