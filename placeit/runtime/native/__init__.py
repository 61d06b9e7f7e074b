"""Run plans without the interpreter: a compiled loop for each lane, over the rules of the simulator.

May import ``runtime/devices`` and the open devices; the executor imports this. Read :mod:`~placeit.runtime.native.plan`
first.
"""
