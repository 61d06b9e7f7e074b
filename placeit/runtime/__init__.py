"""Run placements: open devices and links, compiled segments and executors.

May import ``backends``, ``planning``, ``simulator``, ``devices`` and ``core``. In here, executors do not import what opens
them: :mod:`~placeit.runtime.runtime` puts :mod:`~placeit.runtime.device_pool`, :mod:`~placeit.runtime.segment_book` and
:mod:`~placeit.runtime.segment_compiler` together. Read that first, then :mod:`~placeit.runtime.plan_executor`.
The base class of executors is a chain: :mod:`~placeit.runtime.plan_lanes` (what differs between lanes and streams),
:mod:`~placeit.runtime.run_ends`, :mod:`~placeit.runtime.serving_loop` and ``plan_executor``.
"""
