"""Agents: policies that place graphs, one folder or file for each system of the literature."""
