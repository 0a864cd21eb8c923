"""Rollout tier: multi-turn tool-calling trajectories with exact tokens, masks and logprobs."""
