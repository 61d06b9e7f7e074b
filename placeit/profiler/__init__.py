"""Costs of groups, links and plans: measured, calibrated by real runs, cached on disk; statistics and traces."""
