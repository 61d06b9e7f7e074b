"""Several models on the same devices: read their rates and limits, place them together, and measure them together.

May import ``tuning`` and all below it. Read :mod:`placeit.workload.entries` first, then :mod:`placeit.workload.optimize`;
for many nodes, :mod:`placeit.workload.fleet`, then :mod:`placeit.workload.assigning`.
"""
