"""Conformance suites for plug-ins, and random problems to test with. Import the modules themselves; suites need pytest.

May import everything but ``learning`` and ``cli``. Read :mod:`~placeit.testing.placers` first.
"""
