"""Simulate placements: the compiled rules of execution, and objectives over simulated runs."""
