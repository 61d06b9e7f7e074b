"""The benchmark of GPUs on two devices that are the CPU: its code, with no figure that means anything."""

from dataclasses import replace

import pytest
import torch

from benchmarks import gpu
from benchmarks._harness import Args, Report
from placeit.core.cluster import Cluster
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from tests.eager_streams import devices, run_at_once


@pytest.mark.slow
def test_everything_that_a_gpu_is_asked_for_is_in_the_report(monkeypatch):
    run_at_once(monkeypatch)
    monkeypatch.setattr(StreamAccelerator, "free_bytes", lambda self, device: 1e9)
    for name, value in {"COPY_BYTES": (16, 1 << 16), "_SAMPLED_S": 0.001, "_BUDGET_S": 0.5}.items():
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(gpu, "LARGE", {"ffnn": {"batch": 24, "features": 6, "hidden": 20}})
    cluster = Cluster(tuple(replace(device, full_name=f"Card {device.name}") for device in devices("cpu", "cpu:0")))
    report = Report()
    small = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)).eval()
    monkeypatch.setattr(gpu, "build_model", lambda name, seed: small)
    monkeypatch.setattr(gpu, "example_inputs", lambda name: {"image": torch.randn(1, 3, 8, 8)})
    gpu.measure(cluster, Args(models=("ffnn", "resnet50")), report)
    assert [row["card"] for row in report.rows if "card" in row] == ["Card cpu", "Card cpu:0"]
    copies = {row["copy"] for row in report.rows if "copy" in row}
    assert copies == {f"{a} -> {b}" for a in ("host", "cpu", "cpu:0") for b in ("host", "cpu", "cpu:0") if a != b}
    launches = {row["launches"]: row["us_per_op"] for row in report.rows if "launches" in row}
    (claim,) = report.claims
    assert (claim["value"], claim["target"]) == (launches["placeit"], "<= 15")
    rows = {row["candidate"]: row for row in report.rows if row.get("graph") == "ffnn"}
    assert rows.keys() == {"PyTorch, uncut", "placeit on 1", "placeit on 2"}
    assert rows["PyTorch, uncut"]["ratio_to_plain"] == 1
    for count in (1, 2):
        assert rows[f"placeit on {count}"]["output_error"] < 1e-4
        assert rows[f"placeit on {count}"]["simulated_ms"] > 0
    rows = {row["candidate"]: row for row in report.rows if row.get("network") == "resnet50"}
    assert rows.keys() == {"PyTorch, uncut", "placeit", "placeit, with the CPU"}
    assert all(row["output_error"] < 1e-4 for who, row in rows.items() if who != "PyTorch, uncut")
