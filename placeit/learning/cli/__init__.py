"""The command ``placeit train``, which is found as those of plug-ins are."""

from __future__ import annotations

from placeit.cli.commands import Command

__all__ = ["TRAIN"]

TRAIN = Command("Train a learned placer, in simulation or by measured runs.", "placeit.learning.cli.train:train")
