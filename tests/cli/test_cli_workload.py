"""Workloads on the command line: placed together, written, and served."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.devices.clusterfile import read_cluster, write_cluster
from placeit.workload.entries import Workload
from tests.cli.test_cli_serve import Serving, serving
from tests.schema_check import check_schema
from tests.workload.nets import described, net, write_workload

__all__ = ["serving"]  # a fixture


@pytest.fixture
def models(tmp_path: Path) -> Path:
    net(tmp_path, "one")
    net(tmp_path, "two")
    write_cluster(described(fast=1e6, slow=5e5), tmp_path / "boards.yaml")
    assert read_cluster(tmp_path / "boards.yaml").names == ("fast", "slow")
    return tmp_path


def test_a_workload_is_placed_and_its_file_names_the_placements(cli: Any, models: Path) -> None:
    path = write_workload(models, "model: one/model.onnx, name: one, rate: 5", "model: two/model.onnx, name: two, rate: 5")
    done = cli("optimize", path, "-d", models / "boards.yaml", "--budget", "2s")
    assert done.exit_code == 0, done.stderr
    assert "it keeps all limits (predicted)" in " ".join(done.stdout.split())
    placed = Workload.load(models / "workload.placed.yaml")
    assert [entry.placement for entry in placed] == [
        models / f"workload.placed.{name}.placement.json" for name in ("one", "two")
    ]
    assert all(entry.placement is not None and entry.placement.is_file() for entry in placed)
    again = cli("optimize", models / "workload.placed.yaml", "-d", models / "boards.yaml", "--budget", "2s", "--json")
    check_schema(json.loads(again.stdout), "placeit.workload/1")
    assert again.exit_code == 0


def test_a_limit_that_is_not_kept_fails_and_writes_nothing(cli: Any, models: Path) -> None:
    path = write_workload(models, "model: one/model.onnx, name: one, rate: 5, latency_limit: p95=0.01ms")
    done = cli("optimize", path, "-d", models / "boards.yaml", "--budget", "2s", "--quiet")
    assert done.exit_code == 1
    assert done.stdout.startswith("nothing: no placement keeps the limits: one takes")
    assert not (models / "workload.placed.yaml").exists()


def test_what_a_workload_does_not_take_is_refused(cli: Any, models: Path) -> None:
    path = write_workload(models, "model: one/model.onnx, name: one, rate: 5")
    for words, message in (
        (["--objective", "energy"], "--objective is about one model"),
        (["--in-flight", "2"], "--in-flight is about one model"),
        (["--page", "page.html"], "--page is about one model"),
        (["--output", path], "is named twice"),
        (["-d", "CPU@99999"], "CPU@99999"),
    ):
        done = cli("optimize", path, *words)
        assert done.exit_code != 0
        assert message in done.stderr
    done = cli("optimize", models / "boards.yaml", "-d", "CPU")
    assert "unknown key 'devices'; known: models" in done.stderr
    done = cli("serve", path, "-d", "CPU")
    assert "the model 'one' has no 'placement'" in done.stderr


def test_the_models_of_a_placed_workload_are_served_by_their_names(
    cli: Any, models: Path, cores: Sequence[str], serving: Callable[..., Serving]
) -> None:
    path = write_workload(
        models, "model: one/model.onnx, name: one, rate: 50", "model: two/model.onnx, name: two, in_flight: 1"
    )
    done = cli("optimize", path, "-d", ",".join(cores), "--budget", "2s")
    assert done.exit_code == 0, done.stderr
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": np.zeros(8).tolist()}]}
    process = serving(models / "workload.placed.yaml", "-d", ",".join(cores))
    for name in ("one", "two"):
        status, answer = process.ask(path=f"/v2/models/{name}/infer", body=body)
        assert (status, answer["model_name"]) == (200, name)
    assert [(one["name"], one["succeeded"]) for one in process.end()["models"]] == [("one", 1), ("two", 1)]
