"""The rig: runs what was applied to an API server as containers of podman, with their real security contexts.

Pure, and tested alone: `quantities`, `objects`, `environment`, `containers`, `seccomp`, `policies`, `services`,
`deployments`, `probes`. Shells: `podman`, `bridge`, `nameserver`, `pod`, `node`. It is no kubelet: what it leaves out
stands in docs/kubernetes.md.
"""
