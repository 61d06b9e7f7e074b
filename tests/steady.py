"""Searches whose answers do not depend on what else the machine does."""

import functools

import placeit
from placeit.profiler.passes import Calm

STEADY = placeit.Policy(watch=Calm, check_costs=False, stop_early=False)
"""Repeat no block or round, let kept costs hold, and consider splits even if a bound, which noise may change, excludes them."""

optimize = functools.partial(placeit.optimize, policy=STEADY)
