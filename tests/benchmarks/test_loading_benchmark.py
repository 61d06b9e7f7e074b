"""The benchmark of loading runs whole, and its models are what they are called."""

from pathlib import Path

import onnx
import pytest

from benchmarks import loading
from benchmarks._harness import Args, Report
from benchmarks._loading_models import KINDS, write_model
from placeit.backends import load


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "CNN"])
def test_every_kind_of_model_can_be_read(kind: str, tmp_path: Path) -> None:
    path = write_model(kind, tmp_path, 32)
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    wanted = {"LSTM": "LSTM", "GRU": "GRU", "int8 QDQ": "DequantizeLinear", "dynamic int8": "MatMulInteger"}
    assert wanted.get(kind, "MatMul") in kinds
    assert load(path).outputs[0].name == "y"


@pytest.mark.slow
def test_the_benchmark_compares_latency_weights_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "QUICK_WIDTH", 64)
    report = Report()
    loading.run(Args(quick=True, models=("shared",)), report)
    claims = {str(claim["name"]): claim for claim in report.claims}
    assert list(claims) == [
        "shared: latency over OpenVINO alone",
        "shared: constants over OpenVINO alone",
        "shared: resident over OpenVINO alone",
        "shared: resident in four segments over OpenVINO alone",
    ]
    assert claims["shared: constants over OpenVINO alone"]["holds"] is True
    assert all(claim["value"] is not None for claim in report.claims)
    assert [row["way"] for row in report.rows] == [
        *(loading.ALONE, loading.PLACEIT),
        *(loading.ALONE, loading.PLACEIT, loading.IN_SEGMENTS),
    ]
