"""Learned placers: policies, their features of a problem, and their training."""

FILES = ("log.csv", "best.safetensors", "state.safetensors", "costs.jsonl")
"""What a training keeps in its folder."""
