"""Learned placers: policies, their features of a problem, their training, and the workloads of papers.

May import all of placeit. No other package imports it: its agents, placers, commands and tensor programs are found by entry
points. Read :mod:`~placeit.learning.agent` first, then :mod:`~placeit.learning.training.loop`.
"""

PROBLEM, RUNS = "problem.json", "runs.jsonl"
"""Files of a training on one model: the problem that it places, and the runs that it measured."""

FILES = ("log.csv", "best.safetensors", "state.safetensors", "costs.jsonl", PROBLEM, RUNS)
"""Files that a training keeps in its folder."""
