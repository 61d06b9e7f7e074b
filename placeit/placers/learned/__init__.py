"""Placers that learn: policies, what they see of a problem, and how they are trained."""

FILES = ("log.csv", "best.safetensors", "state.safetensors")
"""What a training keeps in its folder."""
