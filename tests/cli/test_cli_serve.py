"""``placeit serve``: models and bundles, each on its port, until it is told to end."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bundled import edited, rewritten
from tests.schema_check import check_schema
from tests.small_texts import write_folder

INFER = "/v2/models/tiny/infer"
IMAGE = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3, 16, 16], "data": np.zeros(768).tolist()}]}


class Serving:
    """A process of ``placeit serve`` on free ports, and what it has said."""

    def __init__(self, *args: object) -> None:
        command = [sys.executable, "-m", "placeit", "serve", *map(str, args), "--port", "0", "--grpc-port", "0", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("grpc:"):
                break
        found = re.search(r"http: http://127\.0\.0\.1:(\d+)\n", "".join(self.said))
        assert found is not None, self.said
        self.port = int(found[1])

    def ask(self, connection: HTTPConnection | None = None, path: str = INFER, body: Any = IMAGE) -> tuple[int, Any]:
        made = connection or HTTPConnection("127.0.0.1", self.port, timeout=60)
        made.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        answer = made.getresponse()
        data = answer.read()
        if connection is None:
            made.close()
        return answer.status, json.loads(data) if data else None

    def end(self, number: int = signal.SIGTERM) -> dict[str, Any]:
        """Have it end, and return what it prints."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=240)
        assert (self.process.returncode, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def serving(cost_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Serving]]:
    monkeypatch.setenv("PLACEIT_CACHE", str(cost_cache))
    with contextlib.ExitStack() as stack:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who has started the tests may ignore it
        stack.callback(signal.signal, signal.SIGINT, before)

        def make(*args: object) -> Serving:
            made = Serving(*args)
            stack.callback(made.process.wait)
            stack.callback(made.process.kill)
            return made

        yield make


def test_what_was_accepted_in_a_burst_is_answered_after_sigterm(
    serving: Callable[..., Serving], tiny: Path, placement: Path
) -> None:
    made, seen, begun = serving(tiny, "-p", placement, "--queue", 4), list[object](), threading.Semaphore(0)

    def ask() -> None:
        connection = HTTPConnection("127.0.0.1", made.port, timeout=120)
        while True:
            try:
                status, answer = made.ask(connection)
            except ConnectionError as error:  # closed before it has accepted a request, or not to be had any more
                seen.append("not accepted")
                connection.close()
                if isinstance(error, ConnectionRefusedError):
                    return
            else:
                seen.append("full" if status == 503 and "wait already" in answer["error"] else status)
                begun.release()

    clients = [threading.Thread(target=ask) for _ in range(8)]
    for client in clients:
        client.start()
    for _ in range(40):
        assert begun.acquire(timeout=240)
    found = made.end()
    for client in clients:
        client.join()
    outcomes = Counter(seen)
    assert set(outcomes) <= {200, 503, "full", "not accepted"}
    (model,) = found["models"]
    assert (model["succeeded"], model["refused"]) == (outcomes[200], outcomes["full"])
    assert (model["failed"], model["expired"], model["cancelled"]) == (0, 0, 0)
    check_schema(found, "placeit.serve/1")


def test_a_signal_that_another_thread_receives_ends_it(serving: Callable[..., Serving], tiny: Path, placement: Path) -> None:
    """Like one that comes while the main thread is about to wait: neither interrupts the wait."""
    made = serving(tiny, "-p", placement)
    process = made.process.pid
    other = next(int(thread.name) for thread in Path(f"/proc/{process}/task").iterdir() if int(thread.name) != process)
    assert ctypes.CDLL(None).tgkill(process, other, signal.SIGTERM) == 0
    out, err = made.process.communicate(timeout=240)
    assert (made.process.returncode, err) == (0, "")
    assert json.loads(out)["models"][0]["succeeded"] == 0


def test_a_request_whose_head_has_arrived_is_finished_unless_there_is_a_second_signal(
    serving: Callable[..., Serving], tiny: Path, placement: Path
) -> None:
    body = json.dumps(IMAGE).encode()
    for patient in (True, False):
        made = serving(tiny, "-p", placement)
        with socket.create_connection(("127.0.0.1", made.port), timeout=120) as client:
            client.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n".encode())
            client.sendall(b"Expect: 100-continue\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 100 ")  # it is accepted
            made.process.send_signal(signal.SIGTERM)
            while made.ask(path="/v2/health/ready", body=None)[0] == 200:
                time.sleep(0.01)
            if patient:
                client.sendall(body)
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
            else:
                made.process.send_signal(signal.SIGTERM)
            made.process.communicate(timeout=240)
        assert made.process.returncode == (0 if patient else 143)


def test_bundles_are_served_by_their_names_or_others_and_ctrl_c_ends_that(
    serving: Callable[..., Serving], cli: Any, tiny: Path, placement: Path, tmp_path: Path
) -> None:
    built = cli("build", tiny, "-p", placement, "-o", tmp_path / "app.placeit")
    assert built.exit_code == 0, built.stderr
    made = serving(tmp_path / "app.placeit", f"other={tmp_path / 'app.placeit'}", "--control")
    answers = [made.ask(path=f"/v2/models/{name}/infer") for name in ("tiny", "other")]
    assert [status for status, _ in answers] == [200, 200]
    assert answers[0][1]["outputs"] == answers[1][1]["outputs"]
    assert made.ask(path="/v2/repository/models/other/load", body={}) == (200, {"outcome": "loaded"})
    assert made.ask(path="/v2/models/other/infer")[0] == 200
    found = made.end(signal.SIGINT)  # requests before the model was loaded anew count as well
    assert [(model["name"], model["succeeded"]) for model in found["models"]] == [("tiny", 1), ("other", 2)]


def test_what_is_not_installed_is_said(cli: Any, tiny: Path, placement: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = cli("serve", tiny, "-p", placement)
    assert result.exit_code == 2
    assert "A server needs Starlette, which is not installed: pip install 'placeit[serve]'" in result.stderr


def test_what_is_wrong_is_said_before_anything_is_served(cli: Any, tiny: Path, placement: Path, tmp_path: Path) -> None:
    (tmp_path / "spaces").write_text("a b\n")
    (tmp_path / "nothing").touch()
    served: Sequence[object] = (tiny, "-p", placement)
    for args, said in (
        ((tiny,), "with --placement, or --devices to run it whole"),
        ((tiny, tiny, "-p", placement), "--placement is for one model"),
        ((f"a/b={tiny}", "-p", placement), "a/b="),
        ((*served, "--tls-cert", tiny), "give --tls-cert and --tls-key, or neither"),
        ((*served, "--tls-cert", tiny, "--tls-key", tiny), "are not a certificate chain and its private key"),
        ((*served, "--token-file", tmp_path / "spaces"), "is to hold a token"),
        ((*served, "--token-file", tmp_path / "nothing"), "is to hold a token"),
        ((*served, "--token-file", tmp_path / "missing"), "missing"),
        ((*served, "--client-timeout", "inf"), "--client-timeout is inf seconds"),
        ((*served, "--client-timeout", "1000h"), "it must be from 1 ms to 24 days"),
        ((*served, "--max-connections", str(1 << 31)), "--max-connections"),
        ((*served, "--priority-levels", str(1 << 31)), "--priority-levels"),
        ((*served, "--max-batch", "8"), "cannot be joined: the first size of its input 'x' is not open"),
        ((*served, "--max-batch", "-1"), "--max-batch is '-1': give a number of rows"),
        ((*served, "--follow-rates"), "--follow-rates is about placed workloads"),
        ((), "There is nothing to serve: give bundles"),
        ((*served, "--repository", tmp_path / "missing"), "--placement is for one model"),
        (("--repository", tmp_path / "missing"), "missing is not a folder"),
        ((*served, "--sequence-idle", "0s"), "--sequence-idle is 0 seconds"),
        ((*served, "--state-memory", "2 apples"), "'apples' is not a unit of memory"),
        ((*served, "--host", "no.such.host.invalid"), "HTTP cannot be served at no.such.host.invalid:8000"),
        ((tmp_path / "missing.onnx", "-p", placement), "missing.onnx"),
    ):
        result = cli("serve", *args)
        assert result.exit_code in (1, 2), result.output
        assert said in result.stderr
        assert "bug" not in result.stderr


def bundle_of(cli: Any, tiny: Path, placement: Path, folder: Path) -> Path:
    built = cli("build", tiny, "-p", placement, "-o", folder / "app.placeit")
    assert built.exit_code == 0, built.stderr
    return folder / "app.placeit"


def test_a_bundle_that_computes_something_else_here_is_not_served(
    cli: Any, tiny: Path, placement: Path, tmp_path: Path
) -> None:
    def change(files: dict[str, bytes]) -> None:
        name = next(name for name in files if name.startswith("samples/0-out"))
        files[name] = files[name][:-4] + np.float32(1000).tobytes()
        data = json.loads(files["bundle.json"])
        del data["digest"]
        data["files"][name]["sha256"] = hashlib.sha256(files[name]).hexdigest()
        data["digest"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        files["bundle.json"] = json.dumps(data).encode()

    wrong = rewritten(bundle_of(cli, tiny, placement, tmp_path), tmp_path / "wrong.placeit", change)
    result = cli("serve", wrong)
    assert result.exit_code == 1
    assert "does not compute here what it should" in result.stderr
    assert "http:" not in result.stderr


@pytest.mark.parametrize(
    ("address", "said"), [("auto", "'auto' stands for several devices"), ("edge1/CPU@0", "no cluster runs: start one with")]
)
def test_a_bundle_that_names_no_device_of_this_machine_is_refused_without_a_cluster(
    cli: Any, tiny: Path, placement: Path, tmp_path: Path, address: str, said: str
) -> None:
    def change(data: dict[str, Any]) -> None:
        data["devices"][0]["address"] = address

    path = edited(bundle_of(cli, tiny, placement, tmp_path), tmp_path / "elsewhere.placeit", change)
    for command in (("run",), ("serve",)):
        result = cli(*command, path)
        assert result.exit_code in (1, 2)
        assert said in result.stderr
        assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


def test_bundles_of_a_folder_come_and_go_while_it_serves(
    serving: Callable[..., Serving], cli: Any, tiny: Path, placement: Path, tmp_path: Path
) -> None:
    path, folder = bundle_of(cli, tiny, placement, tmp_path), tmp_path / "bundles"
    folder.mkdir()
    made = serving("--repository", folder, "--watch")
    shutil.copy(path, folder / "cats.placeit")
    while made.ask(path="/v2/models/cats/infer")[0] != 200:
        time.sleep(0.05)
    (folder / "cats.placeit").unlink()
    while made.ask(path="/v2/models/cats/infer")[0] != 404:
        time.sleep(0.05)
    assert made.end()["models"] == []


def test_a_folder_with_a_decoder_is_served_as_clients_of_openai_ask(serving: Callable[..., Serving], tmp_path: Path) -> None:
    made = serving(f"tiny={write_folder(tmp_path)}", "-d", "CPU@0", "--context", "64")
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
    status, found = made.ask(path="/v1/chat/completions", body=asked)
    assert (status, found["object"], found["usage"]["completion_tokens"]) == (200, "chat.completion", 5)
    assert made.ask(path="/v1/models", body=None)[1]["data"][0]["id"] == "tiny"
    assert made.ask(path="/v2/models/tiny", body=None)[1]["outputs"][0]["name"] == "logits"
    assert made.end()["models"][0]["succeeded"] == 5  # steps


def test_a_folder_with_a_tokenizer_whose_model_is_no_decoder_is_served_without_texts(
    serving: Callable[..., Serving], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "onnx").mkdir()
    shutil.copy(tiny, tmp_path / "onnx" / "model.onnx")
    (tmp_path / "tokenizer.json").write_text("{}")
    made = serving(f"tiny={tmp_path}", "-d", "CPU@0")
    assert [line for line in made.said if line.startswith("texts: none: ")]
    assert made.ask()[0] == 200
    assert made.ask(path="/v1/models", body=None)[0] == 404
    assert made.end()["models"][0]["succeeded"] == 1
