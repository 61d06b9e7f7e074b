"""Agents: policies that place graphs, one folder or file per system."""
