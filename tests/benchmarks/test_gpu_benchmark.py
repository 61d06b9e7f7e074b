import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from eager_streams import devices, run_at_once

from benchmarks import gpu
from benchmarks._harness import Args, Report, main
from placeit.core.cluster import Cluster
from placeit.core.errors import DeviceError
from placeit.runtime.accelerators.torch_accelerator import TorchAccelerator

SMALL = {
    "chain-mm": {"size": 32},
    "ffnn": {"batch": 24, "features": 6, "hidden": 20},
    "llama-block": {"tokens": 12, "width": 16, "heads": 2, "hidden": 24},
    "llama-layer": {"tokens": 12, "width": 16, "heads": 2, "hidden": 24, "vocabulary": 20},
}


@pytest.fixture
def cpus(monkeypatch):
    """Two devices that are the CPU: the code of the benchmark, with no figure that means anything."""
    run_at_once(monkeypatch)
    monkeypatch.setattr(TorchAccelerator, "free_bytes", lambda self, device: 1e9)
    monkeypatch.setattr(gpu, "LARGE", SMALL)
    monkeypatch.setattr(gpu, "COPY_BYTES", (16, 1 << 16))
    monkeypatch.setattr(gpu, "_SAMPLED_S", 0.001)
    monkeypatch.setattr(gpu, "_BUDGET_S", 0.5)
    return Cluster(tuple(replace(device, full_name=f"Card {device.name}") for device in devices("cpu", "cpu:0")))


@pytest.mark.slow
def test_everything_that_a_gpu_is_asked_for_is_in_the_report(cpus):
    report = Report()
    gpu.measure(cpus, Args(), report)
    assert [row["card"] for row in report.rows if "card" in row] == ["Card cpu", "Card cpu:0"]
    copies = [row["copy"] for row in report.rows if "copy" in row]
    assert sorted(copies) == sorted(
        ["host -> cpu", "host -> cpu:0", "cpu -> host", "cpu:0 -> host", "cpu -> cpu:0", "cpu:0 -> cpu"]
    )
    launches = {row["launches"]: row["us_per_op"] for row in report.rows if "launches" in row}
    assert launches.keys() == {"plain PyTorch", "placeit"}
    (claim,) = report.claims
    assert claim["name"] == "host overhead per op launched, median"
    assert (claim["value"], claim["target"]) == (launches["placeit"], "<= 15")
    for name in SMALL:
        rows = {row["candidate"]: row for row in report.rows if row.get("graph") == name}
        assert rows.keys() == {"PyTorch, uncut", "placeit on 1", "placeit on 2"}
        assert rows["PyTorch, uncut"]["ratio_to_plain"] == 1
        for count in (1, 2):
            assert rows[f"placeit on {count}"]["output_error"] < 1e-4
            assert rows[f"placeit on {count}"]["simulated_ms"] > 0


def test_without_a_gpu_it_says_in_one_line_what_is_missing(monkeypatch, capsys):
    def refuse(devices):
        raise DeviceError("PyTorch is built without CUDA.")

    monkeypatch.setattr(gpu, "TorchAccelerator", refuse)
    report = Report()
    gpu.run(Args(), report)
    assert report.rows == [{"measured": False, "missing": "PyTorch is built without CUDA."}]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.strip() == "No GPU was measured. PyTorch is built without CUDA."


def test_what_to_install_is_printed_as_it_is(monkeypatch, capsys):
    def refuse(devices):
        raise DeviceError("Run `pip install 'placeit[cuda]'`.")

    monkeypatch.setattr(gpu, "TorchAccelerator", refuse)
    main("gpu", gpu.run, [])
    assert "pip install 'placeit[cuda]'" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_command_ends_well_where_there_is_no_gpu():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--quick", "--json"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["measured"] is False
    assert row["missing"].startswith(f"PyTorch {torch.__version__}")
    assert row["missing"] in done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a PyTorch built with CUDA")
def test_a_gpu_is_measured():
    report = Report()
    gpu.run(Args(quick=True, models=("chain-mm",)), report)
    rows = [row for row in report.rows if "graph" in row]
    assert len(rows) == torch.cuda.device_count() + 1
    assert all(row["output_error"] < 1e-4 for row in rows if row["output_error"] is not None)
