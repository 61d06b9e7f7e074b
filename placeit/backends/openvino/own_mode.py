"""Run a whole model in one of OpenVINO's own modes, on one device or several, as a baseline for placements."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.cluster import Device
from placeit.core.telemetry import import_openvino
from placeit.devices.compiled import compile_cached
from placeit.devices.openvino import DYNAMIC_QUANTIZATION, explaining, openvino_core, target_name, writable_properties
from placeit.devices.own_modes import OwnMode

__all__ = ["OwnModeRunner"]

openvino = import_openvino()

_MIN_ROUNDS, _MIN_S = 2, 0.02  # a timing of many requests has at least: runs of each infer request, and seconds
_BY_DEVICE = ("AUTO", "HETERO", "MULTI")  # virtual devices that take properties for each of their devices


class OwnModeRunner:
    """A whole model in one of OpenVINO's own modes.

    In a mode for many requests, OpenVINO chooses how many are in flight. A model with state, or with several typical sizes,
    runs in rounds: each infer request runs one request of each size, as a sequence from the initial state. AUTO waits until
    its device is ready, instead of starting on the CPU.

    Args:
        model: the model, which runs on its sample inputs.
        mode: the devices, and OpenVINO's mode on them.
        precision: inference precision of every device.

    Raises:
        DeviceError: OpenVINO cannot compile or run it.
    """

    def __init__(self, model: OpenVinoModel, mode: OwnMode, precision: str) -> None:
        self._name, self._model = mode.name, model
        self._queue: Any = None
        with explaining(f"OpenVINO cannot compile {model.path} for {mode.name}"):
            core, config = openvino_core(), _config(mode, precision)
            # a GPU's program from the cache has half the requests in flight of a newly compiled one (2026.4)
            compiling = core.compile_model if mode.steady else functools.partial(compile_cached, core)
            self._compiled: Any = compiling(model.ov_model, mode.target, config)
            self._samples = model.sample_requests()
            self._has_state = bool(model.ov_model.get_variables())  # AUTO over several devices cannot tell (2026.4)
            if mode.steady:
                self._queue = openvino.AsyncInferQueue(self._compiled, 0)
            self._requests: list[Any] = list(self._queue) if mode.steady else [self._compiled.create_infer_request()]
            if mode.steady and (self._has_state or len(self._samples) > 1):
                # a queue gives the next request to any infer request, and resets no state
                self._requests, self._queue = [self._compiled.create_infer_request() for _ in self._requests], None
            # an output that is an input is in the memory of that input, which is the caller's
            nodes = (result.input_value(0).get_node() for result in model.ov_model.get_results())
            self._share_inputs = all(node.get_type_name() != "Parameter" for node in nodes)
            self.set_inputs(self._samples[0].inputs)
        self._runs = _MIN_ROUNDS * len(self._requests)

    @property
    def used(self) -> tuple[str, ...]:
        """The devices that OpenVINO reports to have used; empty if it does not report any."""
        try:
            found = self._compiled.get_property("EXECUTION_DEVICES")
        except RuntimeError:
            return ()
        return tuple(found.split(",") if isinstance(found, str) else found)

    def set_inputs(self, inputs: Arrays) -> None:
        """Set the inputs of all infer requests, by name. A single one gets them again in each run, as from a caller."""
        self._inputs = {i: np.require(inputs[spec.name], requirements="C") for i, spec in enumerate(self._model.inputs)}
        for request in self._requests:
            for index, value in self._inputs.items():
                request.set_input_tensor(index, openvino.Tensor(value))

    def _time_round(self) -> float:
        """Run a sequence with a request of each typical size in every infer request, all of them at the same time.

        Returns:
            The mean seconds of a request, weighted by the shares of the sizes.
        """
        mean = 0.0
        for number, sample in enumerate(self._samples):
            if len(self._samples) > 1:
                self.set_inputs(sample.inputs)
            start = time.perf_counter()
            self.run_all(reset=number == 0)
            mean += sample.share * (time.perf_counter() - start)
        return mean / len(self._requests)

    def run_all(self, *, reset: bool = True) -> None:
        """Run every infer request once, all at the same time.

        Args:
            reset: whether to start from the model's initial state; else from the state that the run before has left.

        Raises:
            DeviceError: OpenVINO cannot run it.
        """
        with explaining(f"OpenVINO cannot run {self._name}"):
            for request in self._requests if self._has_state and reset else ():
                request.reset_state()
            if self._queue is not None:
                for _ in self._requests:
                    self._queue.start_async()
                self._queue.wait_all()
            elif len(self._requests) == 1:
                # the fastest way to call it
                self._requests[0].infer(self._inputs, share_inputs=self._share_inputs, share_outputs=True)
            else:
                for request in self._requests:
                    request.start_async()
                for request in self._requests:
                    request.wait()

    def time(self) -> float:
        """Return the seconds per request of one run, or of many requests; with several typical sizes, the weighted mean.

        Raises:
            DeviceError: OpenVINO cannot run it.
        """
        if self._queue is None:
            return self._time_round()
        start = time.perf_counter()
        with explaining(f"OpenVINO cannot run {self._name}"):
            for _ in range(self._runs):
                self._queue.start_async()
            self._queue.wait_all()
        each = (time.perf_counter() - start) / self._runs
        self._runs = len(self._requests) * max(_MIN_ROUNDS, math.ceil(_MIN_S / each / len(self._requests)))
        return each

    def written(self) -> list[dict[str, NDArray[Any]]]:
        """Return the outputs of each infer request by name, as views of the memory that they are written to."""
        names = [spec.name for spec in self._model.outputs]
        return [{name: request.get_output_tensor(index).data for index, name in enumerate(names)} for request in self._requests]

    def close(self) -> None:
        """Release the model."""
        self._queue = self._compiled = None
        self._requests = []


def _config(mode: OwnMode, precision: str) -> dict[str, Any]:
    virtual, colon, _ = mode.target.partition(":")
    config: dict[str, Any] = {"PERFORMANCE_HINT": "THROUGHPUT" if mode.steady else "LATENCY"}
    if colon and virtual in _BY_DEVICE:
        config["DEVICE_PROPERTIES"] = {target_name(device): _properties(device, precision) for device in mode.devices}
    else:
        config |= _properties(mode.devices[0], precision)
    if virtual == "AUTO":
        config["ENABLE_STARTUP_FALLBACK"] = False
    return config


def _properties(device: Device, precision: str) -> dict[str, Any]:
    """Return the properties for one device that its plugin supports."""
    wanted: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision}
    if device.core_set and precision == "f32":
        wanted[DYNAMIC_QUANTIZATION] = 0
    if device.core_set and not device.where.whole_cpu:
        wanted["INFERENCE_NUM_THREADS"] = len(device.cores)
    return {name: value for name, value in wanted.items() if name in writable_properties(target_name(device))}
