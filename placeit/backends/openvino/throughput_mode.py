"""OpenVINO's own throughput mode, to compare with: a whole model in several streams on the same cores, without placeit."""

from __future__ import annotations

import math
import time
from typing import Any

from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.cluster import Device
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import explaining, openvino_core, target_name

__all__ = ["ThroughputMode"]

_ROUNDS, _LEAST_S = 2, 0.02  # of a run: requests for each in flight, and seconds


class ThroughputMode:
    """A model compiled with OpenVINO's throughput hint, with as many requests in flight as OpenVINO finds best.

    Args:
        model: the model; it is run on its sample inputs.
        device: a CPU core set; OpenVINO gets as many threads as it has cores, and chooses the cores.
        precision: inference precision.

    Raises:
        DeviceError: OpenVINO cannot compile or run it.
    """

    def __init__(self, model: OpenVinoModel, device: Device, precision: str) -> None:
        config: dict[str, Any] = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": precision}
        if not device.where.whole_cpu:
            config["INFERENCE_NUM_THREADS"] = len(device.cores)
        ov = import_openvino()
        with explaining(f"OpenVINO cannot compile {model.path} for throughput"):
            compiled = openvino_core().compile_model(model.ov_model, target_name(device), config)
            self._queue: Any = ov.AsyncInferQueue(compiled, 0)
            values, names = model.sample_inputs(), {spec.op: spec.name for spec in model.inputs}
            inputs = [values[names[node.get_friendly_name()]] for node in model.ov_model.get_parameters()]
            for request in self._queue:
                for index, value in enumerate(inputs):
                    request.set_input_tensor(index, ov.Tensor(value))
        self._length = _ROUNDS * len(self._queue)

    def time(self) -> float:
        """Run many requests and return the seconds per request. Raises DeviceError."""
        begin = time.perf_counter()
        with explaining("OpenVINO cannot run in its throughput mode"):
            for _ in range(self._length):
                self._queue.start_async()
            self._queue.wait_all()
        each = (time.perf_counter() - begin) / self._length
        self._length = len(self._queue) * max(_ROUNDS, math.ceil(_LEAST_S / each / len(self._queue)))
        return each

    def close(self) -> None:
        """Release the model."""
        self._queue = None
