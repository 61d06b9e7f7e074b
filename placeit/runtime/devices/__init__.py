"""Devices that the executor can run segments on, one kind per file."""
