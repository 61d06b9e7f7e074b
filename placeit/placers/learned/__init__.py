"""Placers that learn: policies, what they see of a problem, and how they are trained."""
