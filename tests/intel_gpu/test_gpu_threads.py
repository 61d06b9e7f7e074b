"""Several threads use both Intel GPUs at once: on the emulated ones, this deadlocks in queues that may reorder commands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from openvino import CompiledModel, Model, Type, opset13

from placeit.devices.openvino import openvino_core

_THREADS, _RUNS = 6, 1500


def test_threads_that_wait_for_both_gpus_at_once_all_go_on(gpus: list[str]) -> None:
    x = opset13.parameter([1, 64], Type.f32)
    model = Model([opset13.relu(opset13.relu(x))], [x])
    compiled = [openvino_core().compile_model(model, gpu, {"NUM_STREAMS": "2"}) for gpu in gpus[:2]]
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = list(pool.map(_run, [compiled[number % len(compiled)] for number in range(_THREADS)], range(_THREADS)))
    assert sums == [64.0 * number * _RUNS for number in range(_THREADS)]


def _run(compiled: CompiledModel, value: int) -> float:
    request, values = compiled.create_infer_request(), np.full((1, 64), value, np.float32)
    return sum(float(request.infer([values])[0].sum()) for _ in range(_RUNS))
