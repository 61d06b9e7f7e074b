"""The command ``placeit``: one module for each sub-command, and what they share.

Nothing here imports NumPy, OpenVINO or rich before a command needs it, so that ``placeit --help`` answers at once.

May import ``report`` and all below it. Read :mod:`~placeit.cli.commands` first, then :mod:`~placeit.cli.command`, which does
what all commands have in common.
"""

from __future__ import annotations

from placeit.cli.app import app, main

__all__ = ["app", "main"]
