"""Conformance suites for plug-ins, and random problems to test with. Import the modules themselves; suites need pytest.

:mod:`~placeit.testing.oracle` has the rules of execution a second time. May import everything but ``learning``, ``cli`` and
``bench``. Read :mod:`~placeit.testing.placers` first.
"""
