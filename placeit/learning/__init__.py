"""Learned placers: policies, their features of a problem, their training, and the workloads of papers.

This package may import all of placeit. No other package imports it: its agents, placers, commands and tensor programs are found
by entry points. Read :mod:`~placeit.learning.agent` first, then :mod:`~placeit.learning.training.loop`.
"""

PROBLEM, RUNS = "problem.json", "runs.jsonl"
"""Files of a training on one model: the placement problem, and the measured runs."""

FILES = ("log.csv", "best.safetensors", "state.safetensors", "costs.jsonl", PROBLEM, RUNS)
"""Files that training writes to its folder."""
