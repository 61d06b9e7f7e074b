"""Run a model as OpenVINO does by itself, on one of its devices or over several, to compare placements with."""

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

_ROUNDS, _MIN_S = 2, 0.02  # least length of a timing of many requests: runs of each infer request, seconds
_BY_DEVICE = ("AUTO", "HETERO", "MULTI")  # virtual devices that take properties for each of their devices


class OwnModeRunner:
    """A whole model in one of OpenVINO's own modes.

    For many requests, as many are in flight as OpenVINO finds best. With several typical sizes, each infer request runs one
    request of each size, all of one size at the same time. AUTO waits until its device is ready, instead of starting on the
    CPU.

    Args:
        model: the model, which runs on its sample inputs.
        mode: the devices, and OpenVINO's mode on them.
        precision: inference precision of every device.

    Raises:
        DeviceError: OpenVINO cannot compile or run it.
    """

    def __init__(self, model: OpenVinoModel, mode: OwnMode, precision: str) -> None:
        ov = import_openvino()
        self._name, self._model = mode.name, model
        self._queue: Any = None
        with explaining(f"OpenVINO cannot compile {model.path} for {mode.name}"):
            core, config = openvino_core(), _config(mode, precision)
            # a GPU's program from the cache has half the requests in flight of a newly compiled one (2026.4)
            compiling = core.compile_model if mode.steady else functools.partial(compile_cached, core)
            self._compiled: Any = compiling(model.ov_model, mode.target, config)
            self._timed_on = model.sample_requests()
            if mode.steady:
                self._queue = ov.AsyncInferQueue(self._compiled, 0)
            self._requests: list[Any] = list(self._queue) if mode.steady else [self._compiled.create_infer_request()]
            if mode.steady and len(self._timed_on) > 1:  # a queue gives the next request of a sequence to any infer request
                self._requests, self._queue = [self._compiled.create_infer_request() for _ in self._requests], None
            # an output that is an input is in the memory of that input, which is the caller's
            nodes = (result.input_value(0).get_node() for result in model.ov_model.get_results())
            self._shares = all(node.get_type_name() != "Parameter" for node in nodes)
            self._has_state = bool(model.ov_model.get_variables())  # AUTO over several devices cannot tell (2026.4)
            self.set_inputs(self._timed_on[0].inputs)
        self._length = _ROUNDS * len(self._requests)

    @property
    def used(self) -> tuple[str, ...]:
        """The devices that OpenVINO reports to have used; empty if it does not report any."""
        try:
            found = self._compiled.get_property("EXECUTION_DEVICES")
        except RuntimeError:
            return ()
        return tuple(found.split(",") if isinstance(found, str) else found)

    def set_inputs(self, inputs: Arrays) -> None:
        """Set inputs, by name, for every request; a single request gets them again in each run, as from a caller."""
        ov = import_openvino()
        self._given = {index: np.require(inputs[spec.name], requirements="C") for index, spec in enumerate(self._model.inputs)}
        for request in self._requests:
            for index in self._given:
                request.set_input_tensor(index, ov.Tensor(self._given[index]))

    def _one_by_one(self) -> float:
        """Run a request of each typical size, as one sequence, or as many as there are infer requests at the same time.

        Returns:
            The mean seconds of a request, weighted by the shares of the sizes.
        """
        counted = 0.0
        for number, sample in enumerate(self._timed_on):
            if len(self._timed_on) > 1:
                self.set_inputs(sample.inputs)
            begin = time.perf_counter()
            self.run_all(anew=number == 0)
            counted += sample.share * (time.perf_counter() - begin)
        return counted / len(self._requests)

    def run_all(self, *, anew: bool = True) -> None:
        """Run every request once, all at the same time, each from the model's initial state unless not ``anew``.

        Raises:
            DeviceError: OpenVINO cannot run it.
        """
        with explaining(f"OpenVINO cannot run {self._name}"):
            for request in self._requests if self._has_state and anew else ():
                request.reset_state()
            if self._queue is not None:
                for _ in self._requests:
                    self._queue.start_async()
                self._queue.wait_all()
            elif len(self._requests) == 1:
                self._requests[0].infer(
                    self._given, share_inputs=self._shares, share_outputs=True
                )  # the fastest way to call it
            else:
                for request in self._requests:
                    request.start_async()
                for request in self._requests:
                    request.wait()

    def time(self) -> float:
        """Return the seconds per request of one run, or of many requests; the mean by shares if there are several sizes.

        Raises:
            DeviceError: OpenVINO cannot run it.
        """
        if self._queue is None:
            return self._one_by_one()
        begin = time.perf_counter()
        with explaining(f"OpenVINO cannot run {self._name}"):
            for _ in range(self._length):
                self._queue.start_async()
            self._queue.wait_all()
        each = (time.perf_counter() - begin) / self._length
        self._length = len(self._requests) * max(_ROUNDS, math.ceil(_MIN_S / each / len(self._requests)))
        return each

    def written(self) -> list[dict[str, NDArray[Any]]]:
        """Return the outputs of each request by name, in the memory that they are written to."""
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
    """Return the properties for one device, as far as its plugin has them."""
    wanted: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision}
    if device.core_set and precision == "f32":
        wanted[DYNAMIC_QUANTIZATION] = 0
    if device.core_set and not device.where.whole_cpu:
        wanted["INFERENCE_NUM_THREADS"] = len(device.cores)
    return {name: value for name, value in wanted.items() if name in writable_properties(target_name(device))}
