"""Models come, go and are loaded anew while clients ask, by their requests or as files change."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from placeit.core.errors import FileError, UsageError
from placeit.core.placement import Placement
from placeit.serve.network import NetworkServer, Options
from placeit.serve.repository import Repository
from placeit.serve.served_model import ServedModel
from placeit.serve.sources import Opened, Source
from placeit.serving.server import Server
from placeit.session import Session
from tests.serve.network_server import call, held
from tests.serve.test_hostile import asking
from tests.serve.test_limits import stub_of

Serve = Callable[..., tuple[NetworkServer, Repository]]


@pytest.fixture
def serve(opened: tuple[Session, Placement], tmp_path: Path) -> Iterator[Serve]:
    """Serve files of a folder, each as the same model; a file that has 'damaged' in it cannot be opened."""
    session, placement = opened

    def opener(source: Source, name: str, version: str) -> Opened:
        if "damaged" in source.path.read_text():
            raise FileError(f"{source.path} is damaged.")
        server = session.serve(placement)
        model = ServedModel(name, server, session.model.inputs, session.model.outputs, version)
        return Opened(model, server.close)

    with contextlib.ExitStack() as stack:

        def make(*fixed: ServedModel, folder: Path = tmp_path, **options: Any) -> tuple[NetworkServer, Repository]:
            repository = Repository(opener, folder, every_s=0.02, **options)
            stack.callback(repository.close)
            repository.open_folder()
            return stack.enter_context(NetworkServer(fixed, Options(port=0, grpc_port=0), repository)), repository

        yield make


def until(condition: Callable[[], object]) -> None:
    """Wait for what the server does; a test that waits in vain runs into its time-out."""
    while not condition():
        time.sleep(0.005)


def states(network: NetworkServer) -> dict[tuple[str, str], tuple[str, str]]:
    found = call(network, "/v2/repository/index", "")[1]
    return {(one["name"], one["version"]): (one["state"], one["reason"]) for one in found}


def infer(network: NetworkServer, name: str) -> int:
    return call(network, f"/v2/models/{name}/infer", json.dumps(asking()))[0]


def test_no_request_is_lost_while_a_model_is_loaded_anew(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "types.placeit").touch()
    network, repository = serve(control=True)
    seen, done = list[int](), threading.Event()

    def ask() -> None:
        while not done.is_set():
            seen.append(infer(network, "types"))

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask) for _ in range(4)]
        for number in range(10):
            assert call(network, "/v2/repository/models/types/load", "{}")[0] == 200
            until(lambda number=number: len(seen) > 5 * number)
        done.set()
        for client in clients:
            client.result()
    assert set(seen) == {200}
    until(lambda: len(repository.models) == 1)  # the others are closed


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_clients_load_and_unload(serve: Serve, tmp_path: Path, kind: str) -> None:
    (tmp_path / "types.placeit").touch()
    network, _ = serve(control=True)
    (tmp_path / "later.placeit").touch()
    (tmp_path / "worse.placeit").write_text("damaged")
    triton = tritonclient.http if kind == "http" else tritonclient.grpc
    with triton.InferenceServerClient(f"127.0.0.1:{network.port if kind == 'http' else network.grpc_port}") as client:
        client.load_model("later")
        assert client.is_model_ready("later")
        client.unload_model("types")
        assert states(network)["types", "1"] == ("UNAVAILABLE", "it was unloaded")
        assert infer(network, "types") == 404
        client.unload_model("later")
        assert call(network, "/v2/models/types")[1]["error"] == "There is no model 'types' here; there are none."
        client.load_model("types")
        assert infer(network, "types") == 200
        for name, said in (
            ("worse", "is damaged"),
            ("none", "nor a placed model 'none'"),
            ("..", "neither a bundle|no POST|Not Found"),
        ):
            with pytest.raises(InferenceServerException, match=said):
                client.load_model(name)
        for name in ("none", "..", "types\0"):
            with pytest.raises(InferenceServerException, match=r"no model '|no POST"):
                client.unload_model(name)
        with pytest.raises(InferenceServerException, match="leave out the parameter 'config'") as refused:
            client.load_model("types", config="{}")
        assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_a_model_whose_client_has_left_is_loaded_all_the_same(serve: Serve, tmp_path: Path) -> None:
    network, repository = serve(control=True)
    os.mkfifo(tmp_path / "slow.placeit")  # which is read until it has been written
    with stub_of(network) as stub:
        messages = tritonclient.grpc.service_pb2
        loading = stub.RepositoryModelLoad.future(messages.RepositoryModelLoadRequest(model_name="slow"))
        with (tmp_path / "slow.placeit").open("w"):  # waits until it is read
            loading.cancel()
            stub.ServerLive(messages.ServerLiveRequest())
            assert not repository.models
        until(lambda: ("slow", "1") in states(network))
    assert infer(network, "slow") == 200
    assert [model.name for model in repository.models] == ["slow"]


def test_what_fails_for_any_reason_is_said_once_and_the_rest_is_followed(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, _ = serve(watch=True)
    with caplog.at_level(logging.ERROR, "placeit"):
        (tmp_path / "odd.placeit").write_bytes(b"\xff")
        until(lambda: "UnicodeDecodeError" in states(network).get(("odd", "1"), ("", ""))[1])
        away = tmp_path.rename(tmp_path.with_name("away"))
        until(lambda: any("cannot be checked" in record.message for record in caplog.records))
        away.rename(tmp_path)
        (tmp_path / "good.placeit").touch()
        until(lambda: states(network).get(("good", "1")) == ("READY", ""))
    assert [record.message.partition(": ")[2].partition(":")[0] for record in caplog.records] == [
        "UnicodeDecodeError",
        "FileNotFoundError",
    ]


def test_clients_are_told_that_the_folder_has_gone(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "types.placeit").touch()
    network, _ = serve(control=True)
    away = tmp_path.rename(tmp_path.with_name("gone"))
    for change in ("load", "unload"):
        status, answer, _ = call(network, f"/v2/repository/models/types/{change}", "")
        assert (status, answer["error"]) == (500, f"{tmp_path} cannot be read: No such file or directory.")
    assert infer(network, "types") == 200
    away.rename(tmp_path)
    assert call(network, "/v2/repository/models/types/load", "")[0] == 200


def test_models_are_listed_though_a_reason_has_characters_of_no_text(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    (folder / "bad.placeit").write_text("damaged")
    network, _ = serve(folder=folder, control=True)
    assert states(network)["bad", "1"] == ("UNAVAILABLE", f"{tmp_path}/?/bad.placeit is damaged.")


def test_statistics_and_metrics_go_on_when_a_model_is_loaded_anew(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    for version in ("1", "2"):
        (tmp_path / "two" / f"{version}.placeit").touch()
    network, repository = serve(control=True)
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{network.grpc_port}") as client:

        def numbers() -> list[list[int]]:
            """Return numbers of requests and runs of each version, as HTTP, gRPC and the metrics tell them."""
            page = call(network, "/metrics")[1].decode()
            told = [
                re.findall(rf'nv_inference_{what}{{model="two",version="."}} (\d+)', page) for what in ("count", "exec_count")
            ]
            ended = r'placeit_request(?:s_total|_latency_seconds_count){model="two",(?:outcome="succeeded",)?version="."} (\d+)'
            assert re.findall(ended, page) == 2 * told[0]
            asked = [call(network, "/v2/models/two/stats")[1], client.get_inference_statistics("two", as_json=True)]
            return [
                [int(number) for pair in zip(*told, strict=True) for number in pair],
                *(
                    [int(one.get(f"{what}_count", 0)) for one in stats["model_stats"] for what in ("inference", "execution")]
                    for stats in asked
                ),
            ]

        assert infer(network, "two") == 200
        assert numbers() == [[0, 0, 1, 1]] * 3
        for what in ("load", "unload", "load"):
            before = repository.models
            assert call(network, f"/v2/repository/models/two/{what}", "{}")[0] == 200
            until(lambda before=before: not set(before) & set(repository.models))
        assert infer(network, "two") == 200
        assert numbers() == [[0, 0, 2, 2]] * 3
    assert len(call(network, "/v2/models/two/versions/1/stats")[1]["model_stats"]) == 1


def test_metrics_have_a_model_that_was_unloaded_until_its_last_request_has_ended(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "types.placeit").touch()
    network, repository = serve(control=True)
    (model,) = repository.models
    with ThreadPoolExecutor(1) as pool:
        with held(model.server):
            asked = pool.submit(infer, network, "types")
            until(lambda: model.accepted)
            assert call(network, "/v2/repository/models/types/unload", "{}")[0] == 200
            page = call(network, "/metrics")[1]
            assert b'placeit_in_flight_requests{model="types",version="1"}' in page
            assert b'nv_inference_pending_request_count{model="types",version="1"}' in page
        assert asked.result() == 200
    until(lambda: not repository.models)
    assert b'model="types"' not in call(network, "/metrics")[1]


def test_a_model_that_is_no_bundle_stays(
    serve: Serve, tmp_path: Path, opened: tuple[Session, Placement], server: Server
) -> None:
    model = opened[0].model
    fixed = ServedModel("fixed", server, model.inputs, model.outputs)
    network, _ = serve(fixed, control=True, watch=True)
    (tmp_path / "fixed.placeit").touch()
    fixed.replaced = True
    (tmp_path / "other.placeit").touch()
    for what in ("load", "unload"):
        status, answer, _ = call(network, f"/v2/repository/models/fixed/{what}", "{}")
        assert (status, "cannot be loaded or unloaded" in answer["error"]) == (400, True)
    until(lambda: ("other", "1") in states(network))
    assert next(one for one in network.models if one.name == "fixed") is fixed
    assert infer(network, "fixed") == 200


def test_clients_change_nothing_unless_they_may(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "types.placeit").touch()
    network, _ = serve()
    for what in ("load", "unload"):
        status, answer, _ = call(network, f"/v2/repository/models/types/{what}", "{}")
        assert (status, "--control" in answer["error"]) == (403, True)


def test_what_comes_changes_or_goes_in_the_folder_is_followed(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "one.placeit"
    (tmp_path / "two").mkdir()
    network, repository = serve(watch=True)
    assert call(network, "/v2/health/ready")[0] == 200
    path.touch()
    for version in ("9", "10"):
        (tmp_path / "two" / f"{version}.placeit").touch()
    until(lambda: len(states(network)) == 3)
    assert call(network, "/v2/models/two")[1]["versions"] == ["9", "10"]
    assert call(network, "/v2/models/two/infer", json.dumps(asking()))[1]["model_version"] == "10"
    assert call(network, "/v2/models/two/versions/9/infer", json.dumps(asking()))[1]["model_version"] == "9"
    (before,) = [model for model in repository.models if model.name == "one"]
    path.write_text("damaged")
    until(lambda: states(network)["one", "1"][1])  # says that its file was replaced
    assert infer(network, "one") == 200
    path.write_text("mended")
    until(lambda: before not in repository.models)
    assert infer(network, "one") == 200
    path.unlink()
    until(lambda: states(network)["one", "1"] == ("UNAVAILABLE", "its file was removed"))
    assert infer(network, "one") == 404


def test_a_file_that_was_replaced_is_said(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "types.placeit").touch()
    network, _ = serve()
    assert b'placeit_model_replaced{model="types",version="1"} 0.0' in call(network, "/metrics")[1]
    with caplog.at_level(logging.WARNING, "placeit"):
        (tmp_path / "types.placeit").write_text("another one")
        until(lambda: b'placeit_model_replaced{model="types",version="1"} 1.0' in call(network, "/metrics")[1])
    assert [record.message for record in caplog.records] == [
        "The file of the model 'types' was replaced or removed; the loaded model is served. Reload it, or restart the server."
    ]
    assert states(network)["types", "1"] == ("READY", "its file was replaced after it was loaded")
    assert infer(network, "types") == 200


def test_names_that_pages_have_are_no_models(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("...placeit", ".hidden.placeit", "a b.placeit", "types.placeit"):
        (tmp_path / name).touch()
    network, _ = serve()
    assert [*states(network)] == [("types", "1")]
    assert [record.message.partition(":")[0] for record in caplog.records] == [f"{tmp_path / 'a b.placeit'} is not served"]
    with pytest.raises(UsageError, match="not a folder"):
        Repository(lambda *_: pytest.fail("it opens nothing"), tmp_path / "types.placeit")
