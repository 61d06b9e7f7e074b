"""Several threads use both Intel GPUs at once: on the emulated ones, this deadlocks in queues that may reorder commands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from openvino import CompiledModel

from placeit.devices.openvino import openvino_core

_THREADS, _RUNS = 6, 1000


def test_threads_that_wait_for_both_gpus_at_once_all_go_on(mlp: Path, gpus: list[str]) -> None:
    options = {"NUM_STREAMS": "2", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = [openvino_core().compile_model(mlp, gpu, options) for gpu in gpus[:2]]
    with ThreadPoolExecutor(_THREADS) as pool:
        changes = list(pool.map(_run, [compiled[number % len(compiled)] for number in range(_THREADS)]))
    assert changes == [0.0] * _THREADS


def _run(compiled: CompiledModel) -> float:
    """Return the largest difference of any output to the first one."""
    request, values = compiled.create_infer_request(), np.ones((1, 64), np.float32)
    first = request.infer([values])[0].copy()
    return max(float(np.abs(request.infer([values])[0] - first).max()) for _ in range(_RUNS))
