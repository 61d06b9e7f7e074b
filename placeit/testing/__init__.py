"""Conformance suites for plug-ins, and random problems to test with. Import the modules themselves; suites need pytest."""
