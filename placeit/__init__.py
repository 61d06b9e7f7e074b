"""placeit finds, by measuring, which part of a neural network should run on which device, and runs it that way."""

from __future__ import annotations

__version__ = "0.1.0"
