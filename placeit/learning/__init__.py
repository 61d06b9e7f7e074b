"""Learned placers: policies, their features of a problem, and their training."""

PROBLEM, RUNS = "problem.json", "runs.jsonl"
"""Where a training on one model keeps what is placed, and the runs that it measured."""

FILES = ("log.csv", "best.safetensors", "state.safetensors", "costs.jsonl", PROBLEM, RUNS)
"""What a training keeps in its folder."""
