"""Admission tier: one cluster-wide limit on code in flight, strictly first in, first out."""
