"""The commands ``placeit generate`` and ``placeit train``, found by their entry points, like the commands of plug-ins."""

from __future__ import annotations

from placeit.cli.commands import Command

__all__ = ["GENERATE", "TRAIN"]

GENERATE = Command("Generate placement problems of task graphs on device networks.", "placeit.learning.cli.generate:generate")
TRAIN = Command("Train a learned placer, in simulation or by measured runs.", "placeit.learning.cli.train:train")
