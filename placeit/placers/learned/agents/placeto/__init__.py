"""Placeto."""
