"""Rollouts of a training run: which groups are played when, with which weights."""
