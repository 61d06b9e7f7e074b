"""The command ``placeit``: one module for each sub-command, and what they share.

Nothing here imports NumPy, OpenVINO or rich before a command needs it, so that ``placeit --help`` answers at once.
"""

from __future__ import annotations

from placeit.cli.app import app, main

__all__ = ["app", "main"]
