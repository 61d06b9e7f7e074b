"""The command ``placeit train``, which is found by its entry point, like the commands of plug-ins."""

from __future__ import annotations

from placeit.cli.commands import Command

__all__ = ["TRAIN"]

TRAIN = Command("Train a learned placer, in simulation or by measured runs.", "placeit.learning.cli.train:train")
