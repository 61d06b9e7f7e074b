"""Run plans on accelerators through streams: segments and copies are launched ahead, and ordered by events.

May import ``runtime/devices`` and what all executors have in common. Read :mod:`~placeit.runtime.accelerators.executor`
first: it sees an accelerator through the few calls of :mod:`~placeit.runtime.devices.accelerator`, so that the fake one
of ``tests/fake_accelerator.py`` drives exactly the code that drives a GPU.
"""
