"""Who may ask a server, and where: TLS, tokens, ports that are taken."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http

from placeit.core.errors import UsageError
from placeit.serve.network import NetworkServer
from placeit.serve.served_model import ServedModel
from placeit.serving.server import Server
from tests.serve.network_server import SHAPE, call, values
from tests.serve.test_clients import tensors
from tests.serve.test_hostile import INFER, asking

GOOD = json.dumps(asking())


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate of this machine."""
    chain, key = folder / "chain.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", key, "-out", chain], check=True, capture_output=True)
    return chain, key


def test_tls_and_a_token_keep_others_out_of_both_protocols(network: Callable[..., NetworkServer], tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    made = network(tls=(chain, key), token=b"secret")
    assert made.url == f"https://127.0.0.1:{made.port}"
    right, wrong = {"authorization": "Bearer secret"}, {"authorization": "Bearer other"}
    connection = HTTPSConnection("localhost", made.port, timeout=60, context=ssl.create_default_context(cafile=str(chain)))
    for headers, status in ((right, 200), (wrong, 401), ({}, 401), ({"authorization": "Basic secret"}, 401)):
        connection.request("POST", INFER, GOOD, headers)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        assert answer.status == status
        assert status == 200 or "send 'Authorization: Bearer TOKEN'" in body["error"]
    for path, status in (("/v2/health/ready", 200), ("/v2/health/live", 200), ("/metrics", 401), ("/v2", 401)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert (path, answer.status) == (path, status)
    connection.close()
    credentials = grpc.ssl_channel_credentials(chain.read_bytes())
    with tritonclient.grpc.InferenceServerClient(f"localhost:{made.grpc_port}", creds=credentials, ssl=True) as client:
        assert client.is_server_ready()
        found = client.infer("types", tensors(client, values()), headers=right).as_numpy("out_bool")
        assert found.shape == SHAPE[::-1]
        for headers in (wrong, {}):
            with pytest.raises(tritonclient.grpc.InferenceServerException, match="UNAUTHENTICATED"):
                client.infer("types", tensors(client, values()), headers=headers)
    with pytest.raises((ConnectionError, OSError)):
        call(made, "/v2/health/live")  # without TLS


def test_pages_of_browsers_cannot_call_a_server_of_this_machine(network: Callable[..., NetworkServer]) -> None:
    """Neither by a name that its owner points at this machine, nor across sites."""
    made = network(allowed_hosts=("Models.example",))
    for headers, status in (
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost:1", "Origin": "https://evil.example"}, 403),
        ({"Host": "[::1", "Origin": "null"}, 403),
        ({"Host": f"127.0.0.1:{made.port}", "Origin": f"http://localhost:{made.port}"}, 200),
        ({"Host": "models.example:80"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-origin", "Content_Type": "application/json"}, 200),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 200),  # curl's
        ({"Content_Type": "text/plain; charset=utf-8"}, 415),
    ):
        found, answer, _ = call(made, INFER, GOOD, **headers)
        assert (headers, found) == (headers, status)
        said = "send application/json" if status == 415 else "--allow-host" if "Host" in headers else "pages of other sites"
        assert status == 200 or said in answer["error"]
    for names in ("evil.example", "localhost"), ("localhost", "evil.example"):
        with socket.create_connection(("127.0.0.1", made.port), timeout=60) as client:
            client.sendall("GET /v2 HTTP/1.1\r\nHost: {}\r\nHost: {}\r\n\r\n".format(*names).encode())
            assert client.recv(12) == b"HTTP/1.1 403"


def test_a_model_cannot_be_named_as_a_page_is(server: Server) -> None:
    with pytest.raises(UsageError, match="'stats', which names a page of the server"):
        ServedModel("stats", server, [], [])


def test_a_port_that_is_taken_or_not_there_is_said(
    network: Callable[..., NetworkServer], capfd: pytest.CaptureFixture[str]
) -> None:
    made = network()
    for options, said in (
        ({"port": made.port}, rf"HTTP cannot be served at 127\.0\.0\.1:{made.port}: Address already in use"),
        ({"grpc_port": made.grpc_port}, rf"gRPC cannot be served at 127\.0\.0\.1:{made.grpc_port}: Address already in use"),
        ({"port": 70_000}, "There is no port 70000"),
        ({"host": "no.such.host.invalid"}, r"HTTP cannot be served at no\.such\.host\.invalid:0"),
    ):
        with pytest.raises(UsageError, match=said):
            network(**options)
    assert capfd.readouterr().err == ""  # gRPC logs nothing itself
    assert call(made, INFER, GOOD)[0] == 200


def test_files_of_tls_that_are_wrong_are_said(network: Callable[..., NetworkServer], tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    other, empty, locked = certificate(tmp_path / "other")[1], tmp_path / "empty.pem", tmp_path / "locked.pem"
    empty.touch()
    subprocess.run(["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", key, "-out", locked], check=True)
    for files, said in (
        ((tmp_path / "missing.pem", key), r"missing\.pem cannot be read: No such file"),
        ((chain, tmp_path), "cannot be read: Is a directory"),
        ((chain, other), "are not a certificate chain and its private key"),
        ((key, chain), "are not a certificate chain"),
        ((empty, empty), "are not a certificate chain"),
        ((chain, locked), "without a password"),
    ):
        with pytest.raises(UsageError, match=said):
            network(tls=files)


def test_models_have_names_of_their_own_that_a_path_can_have(network: Callable[..., NetworkServer]) -> None:
    made: Any = network()
    (model,) = made.models
    with pytest.raises(UsageError, match="Two models are to be served as 'types'"):
        network(beside=ServedModel("types", model.server, (), ()))
    for name in ("", "a/b", "ä", "a b", "a\n"):
        with pytest.raises(UsageError, match="cannot be served as"):
            ServedModel(name, model.server, (), ())
    spec = replace(next(iter(model.inputs.values())), dtype="bfloat16")
    with pytest.raises(UsageError, match="'in_bool' is bfloat16; clients can send and receive bool, "):
        ServedModel("types", model.server, [spec], ())


def test_a_server_may_listen_on_ipv6(network: Callable[..., NetworkServer]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6")
    made = network(host="::1")
    assert made.url == f"http://[::1]:{made.port}"
    with tritonclient.grpc.InferenceServerClient(made.grpc_address) as client:
        assert client.is_server_live()
