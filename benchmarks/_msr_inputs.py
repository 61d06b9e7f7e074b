"""Inputs of Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators (NeurIPS 2020).

``msr_inputs/`` holds five inputs of their public repository for the most loaded device of an inference pipeline, under the MIT
licence beside them. Further ones are read from ``msr/*.json`` in the folder that ``PLACEIT_DATA`` names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from placeit.bench.msr import MsrInput

__all__ = ["msr_inputs"]


def msr_inputs() -> Sequence[MsrInput]:
    """Read all inputs that there are, by name."""
    folders = [Path(__file__).parent / "msr_inputs", *(Path(name) / "msr" for name in [os.environ.get("PLACEIT_DATA")] if name)]
    files = {path.name.partition(".")[0]: path for folder in folders for path in folder.glob("*.json*")}
    return [MsrInput.read(files[name]) for name in sorted(files)]
