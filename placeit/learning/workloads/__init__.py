"""Workloads from papers: generated task graphs and device networks, case studies, and tensor programs.

Read :mod:`~placeit.learning.workloads.registry` first: it names the data sets.
"""
