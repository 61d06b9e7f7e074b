"""Workloads: generated task graphs and device networks, case studies, and models from publications."""
