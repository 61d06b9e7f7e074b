"""placeit finds, by measuring, which part of a neural network should run on which device, and runs it that way."""

from __future__ import annotations

import sys

# importing OpenVINO reports it over the network wherever this package can be imported; placeit never does that
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

__version__ = "0.1.0"
