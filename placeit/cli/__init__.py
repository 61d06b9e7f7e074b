"""The command ``placeit``: one module for each sub-command, and code that the commands share.

No module here imports NumPy, OpenVINO or rich before a command needs it, so that ``placeit --help`` answers at once.

May import ``report`` and all layers below it. Read :mod:`~placeit.cli.commands` first, then :mod:`~placeit.cli.command`, which
does the common work of all commands.
"""

from __future__ import annotations

from placeit.cli.app import app, main

__all__ = ["app", "main"]
