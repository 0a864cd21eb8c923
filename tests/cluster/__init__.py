"""Tests of k8s/ on a real cluster, with its own API server, kubelet and network. KUBECONFIG names the cluster."""
