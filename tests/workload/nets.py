"""Small networks as files, and workloads of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from placeit.core.cluster import Cluster, Device, Link
from tests.serving.test_batching import saved

__all__ = ["described", "net", "write_workload"]


def net(folder: Path, name: str, width: int = 8, layers: int = 3) -> Path:
    """Write a perceptron; ``name`` is the folder of its file."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    weights = {f"w{k}": (rng.standard_normal((width, width)) / width**0.5).astype(np.float32) for k in range(layers)}
    body = "".join(f"a{k} = MatMul ({f'r{k - 1}' if k else 'x'}, w{k}) r{k} = Relu (a{k}) " for k in range(layers - 1))
    body += f"y = MatMul (r{layers - 2}, w{layers - 1})"
    return saved(folder / name, f"(float[1, {width}] x) => (float[1, {width}] y)", body, **weights)


def described(memory: float = float("inf"), **flops: float) -> Cluster:
    """Devices that exist in simulation only, by their operations per second."""
    devices = (
        Device(name, "described", flops_per_s=speed, bytes_per_s=1e15, memory_bytes=memory) for name, speed in flops.items()
    )
    links = {(a, b): Link(1e12, 1e-9, "described") for a in flops for b in flops if a != b}
    return Cluster(tuple(devices), links)


def write_workload(folder: Path, *entries: str) -> Path:
    """Write a workload file of entries in YAML's flow style, without their braces."""
    path = folder / "workload.yaml"
    path.write_text("models:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries))
    return path
