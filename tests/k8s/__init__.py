"""Tests of k8s/, of deploy/ and of the images that they name; none of them needs a cluster."""
