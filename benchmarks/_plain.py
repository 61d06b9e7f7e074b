"""Models that run without placeit, by OpenVINO or ONNX Runtime alone: the baselines of placeit."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import timed
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.telemetry import import_onnxruntime

__all__ = ["Infer", "Plain", "bound_thread", "by_name", "onnxruntime_alone", "openvino_alone", "openvino_options"]

Infer = Callable[[], list[NDArray[np.generic]]]
"""A function that runs once, on inputs in place, and returns the outputs in the order of the model's outputs."""


@dataclass(frozen=True)
class Plain:
    """A candidate that is not placeit: the function that runs it, and its thread or process; None for the caller's."""

    infer: Infer
    thread: Executor | None = None

    def run(self) -> list[NDArray[np.generic]]:
        return self.infer() if self.thread is None else self.thread.submit(self.infer).result()

    def time(self) -> float:
        """Return the seconds by a clock on the thread that runs it, so that passing the work to that thread does not count."""
        return _seconds(self.infer) if self.thread is None else self.thread.submit(_seconds, self.infer).result()


def _seconds(infer: Infer) -> float:
    return timed(infer)()


def bound_thread(*cores: int) -> ThreadPoolExecutor:
    """Return a thread that is bound to cores, like the thread of a device on these cores."""
    return ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, set(cores)))


def openvino_options(threads: int) -> dict[str, Any]:
    return {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": min(1, threads - 1),  # as placeit does: a stream of one thread loses errors
        "ENABLE_CPU_PINNING": False,
    }


def openvino_alone(compiled: Any, values: list[NDArray[np.generic]]) -> Infer:
    request = compiled.create_infer_request()
    for i, value in enumerate(values):
        request.get_input_tensor(i).data[...] = value
    outputs = [request.get_output_tensor(i) for i in range(len(compiled.outputs))]

    def infer() -> list[NDArray[np.generic]]:
        request.infer(share_outputs=True)
        return [tensor.data for tensor in outputs]

    return infer


def onnxruntime_alone(path: Path, inputs: Mapping[str, NDArray[np.generic]], *, intra: int, inter: int = 1) -> Infer:
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = intra, inter
    parallel = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.execution_mode = parallel if inter > 1 else onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # its threads may spin during a run, and not on into the run of the next candidate
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return functools.partial(session.run, [output.name for output in session.get_outputs()], dict(inputs))


def by_name(model: OpenVinoModel, outputs: list[NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    return {spec.name: np.array(value) for spec, value in zip(model.outputs, outputs, strict=True)}
