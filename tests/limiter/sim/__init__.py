"""The limiter under simulation: production code on virtual time and a simulated network, replayed by seed."""
