"""Learned placers: policies, their features of a problem, and their training."""

FILES = ("log.csv", "best.safetensors", "state.safetensors")
"""What a training keeps in its folder."""
