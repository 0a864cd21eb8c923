"""Advantages and losses: pure functions of tensors."""
