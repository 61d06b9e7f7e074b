"""A model on a cluster, opened to measure, serve and record placements.

May import ``profiler`` and all below it. Read :class:`~placeit.workbench.opened.Workbench` first.
"""

from __future__ import annotations

from placeit.workbench.opened import Workbench

__all__ = ["Workbench"]
