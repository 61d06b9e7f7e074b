"""Workloads on the command line: placed together, written, and served."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.backends import load
from placeit.cli.terminal import Lines
from placeit.core.placement import Placement
from placeit.devices.clusterfile import discover, read_cluster, write_cluster
from placeit.serve.rates import replanning
from placeit.workload.entries import Workload
from tests.cli.test_cli_serve import Serving, serving
from tests.schema_check import check_schema
from tests.workload.nets import described, net, write_workload

__all__ = ["serving"]  # a fixture

ZEROS = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": np.zeros(8).tolist()}]}


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
        (["--texts", "2"], "--texts is about one model"),
        (["--page", "page.html"], "--page is about one model"),
        (["--output", path], "is named twice"),
        (["--rate", "zzz=5"], "no model 'zzz' with a rate: it has one"),
        (["--rate", "one=1e99"], "'rate' of 'one' is 1e+99; it must be from"),
        (["-d", "CPU@99999"], "CPU@99999"),
    ):
        done = cli("optimize", path, *words)
        assert done.exit_code != 0
        assert message in done.stderr
    done = cli("optimize", models / "boards.yaml", "-d", "CPU")
    assert "unknown key 'devices'; known: models" in done.stderr
    done = cli("serve", path, "-d", "CPU")
    assert "the model 'one' has no 'placement'" in done.stderr
    done = cli("serve", path, "-p", models / "boards.yaml")
    assert "--placement is for a model file" in done.stderr


def test_the_models_of_a_placed_workload_are_served_by_their_names(
    cli: Any, models: Path, cores: Sequence[str], serving: Callable[..., Serving]
) -> None:
    path = write_workload(
        models, "model: one/model.onnx, name: one, rate: 50", "model: two/model.onnx, name: two, in_flight: 1"
    )
    done = cli("optimize", path, "-d", ",".join(cores), "--budget", "2s")
    assert done.exit_code == 0, done.stderr
    process = serving(models / "workload.placed.yaml", "-d", ",".join(cores))
    for name in ("one", "two"):
        status, answer = process.ask(path=f"/v2/models/{name}/infer", body=ZEROS)
        assert (status, answer["model_name"]) == (200, name)
    assert [(one["name"], one["succeeded"]) for one in process.end()["models"]] == [("one", 1), ("two", 1)]


@pytest.mark.parametrize("file", [False, True], ids=["names", "a cluster file"])
def test_a_model_is_served_on_the_whole_of_the_only_device_that_it_may_use(
    models: Path, cores: Sequence[str], serving: Callable[..., Serving], *, file: bool
) -> None:
    model, whole = models / "one" / "model.onnx", f"ort:{cores[0]}"
    graph = load(model).graph
    nothing = np.zeros(len(graph), np.int32)
    Placement(graph.names, nothing, (whole,), graph.hash, nothing).save(models / "one.json")
    path = write_workload(models, f"model: one/model.onnx, name: one, rate: 1, placement: one.json, devices: [{cores[0]}]")
    write_cluster(discover(cores), models / "cores.yaml")
    process = serving(path, "-d", models / "cores.yaml" if file else ",".join(cores))
    assert process.ask(path="/v2/models/one/infer", body=ZEROS)[0] == 200
    process.end()


def test_a_plan_is_read_once_and_each_model_is_shown_while_it_is_opened(
    cli: Any, models: Path, cores: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = plan(models, "first", models, cores, one=cores[0], two=cores[0]), list[object]()
    (models / "two" / "model.onnx").write_bytes(b"damaged")
    load_workload = Workload.load
    monkeypatch.setattr(Workload, "load", lambda given: read.append(given) or load_workload(given))
    monkeypatch.setattr(Lines, "EVERY", 0.0)
    done = cli("serve", path, "-d", ",".join(cores))
    assert (done.exit_code, read) == (1, [path])
    assert [line.partition(": ")[2] for line in done.stderr.splitlines() if "opening" in line] == [
        "opening one, 0 %",
        "opening two, 0 %",
    ]


def test_a_workload_is_placed_anew_for_other_rates_from_where_it_serves(cli: Any, models: Path, cores: Sequence[str]) -> None:
    path, output = plan(models, "first", models, cores, one=cores[0], two=cores[0]), models / "next.yaml"
    words = replanning(path, {"one": 50.0}, output, ["-d", ",".join(cores)])
    done = cli(*words[1:], "--budget", "2s", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["turns"] == 0
    assert [entry.rate for entry in Workload.load(output)] == [50.0, 9.0]
    for words, message in (
        (["--rate", "onee=3"], "no model 'onee' with a rate (did you mean 'one'?)"),
        (["--rate", "3"], "--rate is '3': give NAME=PER_SECOND, such as one=20"),
        (["--rate", "one=fast"], "--rate is 'one=fast': give NAME=PER_SECOND"),
    ):
        assert message in " ".join(cli("optimize", path, *words).stderr.split())
    done = cli("optimize", models / "one" / "model.onnx", "--predict")
    assert "--predict is about workloads" in done.stderr
    done = cli("optimize", models / "one" / "model.onnx", "--rate", "fast")
    assert "--rate is fast: give one number of requests per second" in done.stderr


def on(model: Path, devices: Sequence[str], device: str, path: Path) -> None:
    """Write the placement of a whole model on a device."""
    graph = load(model).graph
    where = np.full(len(graph), devices.index(device), np.int32)
    Placement(graph.names, where, tuple(devices), graph.hash, np.zeros(len(graph), np.int32)).save(path)


def plan(folder: Path, name: str, models: Path, devices: Sequence[str], **where: str) -> Path:
    """Write a placed workload with each of some models on a device."""
    (folder / name).mkdir()
    entries = []
    for model, device in where.items():
        on(models / model / "model.onnx", devices, device, folder / name / f"{model}.json")
        entries.append(f"model: ../{model}/model.onnx, name: {model}, rate: 9, placement: {model}.json")
    return write_workload(folder / name, *entries)


def test_a_plan_is_applied_to_a_running_server_and_no_request_is_lost(
    cli: Any, models: Path, cores: Sequence[str], serving: Callable[..., Serving]
) -> None:
    net(models, "three")
    first = plan(models, "first", models, cores, one=cores[0], two=cores[0])
    process, over = serving(first, "-d", ",".join(cores), "--control", "--watch"), threading.Event()
    body = {"inputs": [{**ZEROS["inputs"][0], "data": [0.5] * 8}]}
    wanted = {name: process.ask(path=f"/v2/models/{name}/infer", body=body)[1]["outputs"] for name in ("one", "two")}

    def ask(name: str) -> int:
        count, connection = 0, HTTPConnection("127.0.0.1", process.port, timeout=60)
        with contextlib.closing(connection):
            while not over.is_set():
                status, answer = process.ask(connection, f"/v2/models/{name}/infer", body)
                assert (status, answer.get("outputs")) == (200, wanted[name])
                count += 1
        return count

    url = f"http://127.0.0.1:{process.port}"
    second = plan(models, "second", models, cores, one=cores[1], two=cores[0])
    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask, name) for name in ("one", "two")]
        for outcomes in (["moved", "unchanged"], ["unchanged", "unchanged"]):
            done = cli("apply", second, "--to", url, "--json")
            assert done.exit_code == 0, done.stderr
            found = json.loads(done.stdout)
            check_schema(found, "placeit.apply/1")
            assert [model["outcome"] for model in found["models"]] == outcomes
        over.set()
        asked = sum(client.result() for client in clients)
    assert Placement.load(first.parent / "one.json").counts()[cores[1]] > 0  # so that it is there after a restart
    net(models, "four", layers=4)
    wrong = plan(models, "wrong", models, cores, four=cores[0])
    for name, say in (("four", "neither a bundle nor a placed model 'four'"), ("two", "belongs to another model")):
        wrong.write_text(wrong.read_text().replace("name: four", f"name: {name}"))
        done = cli("apply", wrong, "--to", url)
        assert (done.exit_code, say in " ".join(done.stdout.split())) == (1, True), done.stdout
    for config, say in (
        ("{}", "has a list 'devices' of names"),
        (3, "is the content of a placement's file"),
        ("[" * 50_000, "is not JSON: it is nested too deep"),
    ):
        status, answer = process.ask(path="/v2/repository/models/two/load", body={"parameters": {"config": config}})
        assert (status, say in answer["error"]) == (400, True), answer
    on(models / "one" / "model.onnx", cores, cores[0], first.parent / "one.json")
    write_workload(
        first.parent,
        "model: ../one/model.onnx, name: one, rate: 9, placement: one.json",
        "model: ../three/model.onnx, name: three, rate: 9, placement: ../second/one.json",
    )

    def there() -> set[tuple[str, str]]:
        return {(one["name"], one["state"]) for one in process.ask(path="/v2/repository/index", body={})[1]}

    while there() != {("one", "READY"), ("two", "UNAVAILABLE"), ("three", "READY")}:
        time.sleep(0.05)
    assert process.ask(path="/v2/models/one/infer", body=body)[1]["outputs"] == wanted["one"]
    ended = {model["name"]: model for model in process.end()["models"]}
    assert ended["one"]["succeeded"] > 0 < asked
    assert all(model["failed"] == model["expired"] == 0 for model in ended.values())


def test_a_server_that_goes_away_leaves_an_answer_that_says_what_it_moved(cli: Any, models: Path, cores: Sequence[str]) -> None:
    net(models, "three")
    path, asked = plan(models, "first", models, cores, one=cores[0], two=cores[0], three=cores[0]), list[str]()

    class Leaving(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path.split("/")[-2])
            self.rfile.read(int(self.headers["Content-Length"]))
            if asked == ["one"]:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"outcome": "moved"}')

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Leaving) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, 0.01)
        try:
            done = cli("apply", path, "--to", f"http://127.0.0.1:{server.server_port}", "--json")
        finally:
            server.shutdown()
    assert done.exit_code == 1
    one, two, three = json.loads(done.stdout)["models"]
    assert (one["outcome"], two["outcome"], three["outcome"], asked) == ("moved", None, None, ["one", "two"])
    assert "may have been moved" in two["error"]
    assert "was not asked" in three["error"]


def test_a_server_that_is_not_there_is_said(cli: Any, models: Path, cores: Sequence[str]) -> None:
    path = plan(models, "first", models, cores, one=cores[0])
    for to, say, code in (
        ("http://127.0.0.1:1", "does not answer as a placeit server does", 1),
        ("edge:8000", "give --to as http://HOST:PORT", 2),
        ("http://[::1", "give --to as http://HOST:PORT", 2),
        ("http://127.0.0.1:99999", "give --to as http://HOST:PORT", 2),
    ):
        done = cli("apply", path, "--to", to)
        assert (done.exit_code, say in " ".join(done.stderr.split())) == (code, True), done.stderr
    (models / "token").touch()
    done = cli("apply", path, "--to", "http://127.0.0.1:1", "--token-file", models / "token")
    assert (done.exit_code, "token is to hold a token" in done.stderr) == (2, True)
