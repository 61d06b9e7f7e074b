"""Learned placers: policies, their features of a problem, and their training.

May import all of placeit. No other room imports it: what it offers is found by entry points. Read
:mod:`~placeit.learning.agent` first, then :mod:`~placeit.learning.training.loop`.
"""

PROBLEM, RUNS = "problem.json", "runs.jsonl"
"""Where a training on one model keeps what is placed, and the runs that it measured."""

FILES = ("log.csv", "best.safetensors", "state.safetensors", "costs.jsonl", PROBLEM, RUNS)
"""Files that a training keeps in its folder."""
