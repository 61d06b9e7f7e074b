"""Conformance tests for plug-ins, and random problems for tests. Import the modules themselves; the suites need pytest.

:mod:`~placeit.testing.oracle` is a reference implementation of the rules of execution. May import everything but ``learning``,
``cli`` and ``bench``. Read :mod:`~placeit.testing.placers` first.
"""
