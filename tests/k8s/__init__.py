"""Tests of k8s/ and of the images that it names."""
