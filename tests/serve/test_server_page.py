"""What docs/server.md says to type, typed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.serve.network import NetworkServer, Options
from placeit.serve.served_model import ServedModel
from placeit.session import Session
from tests.cli.conftest import make_tiny

PAGE = (Path(__file__).parents[2] / "docs/server.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_work(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asking, in_python = (
        re.search(rf"```{language}\n(.*?)```", PAGE.partition("## Requests")[2], re.DOTALL) for language in ("sh", "python")
    )
    assert asking is not None
    assert in_python is not None
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3, 16, 16], "data": np.full((1, 3, 16, 16), 0.5).tolist()}
    Path("request.json").write_text(json.dumps({"inputs": [tensor]}))
    with Session(make_tiny(tmp_path / "tiny.onnx", batch=1), [f"CPU@{allowed_cores()[0]}"], cache=cache) as session:
        session.profile()
        placement: Placement = session.placement(np.zeros(len(session.grouping.groups), int))
        model = session.model
        with (
            session.serve(placement) as server,
            NetworkServer([ServedModel("tiny", server, model.inputs, model.outputs)], Options(port=0, grpc_port=0)) as made,
        ):
            found = []
            for line in asking[1].splitlines():
                command = shlex.split(line.replace(":8000", f":{made.port}"))
                found.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            said = io.StringIO()
            for text in (in_python[1], in_python[1].replace("tritonclient.http", "tritonclient.grpc").replace("8000", "8001")):
                program = text.replace(":8000", f":{made.port}").replace(":8001", f":{made.grpc_port}")
                with contextlib.redirect_stdout(said):
                    exec(compile(program, "docs/server.md", "exec"), {})
    assert json.loads(found[0])["inputs"][0]["name"] == "x"
    assert json.loads(found[1])["outputs"][0]["shape"] == [1, 16, 16, 16]
    assert 'placeit_requests_total{model="tiny",outcome="succeeded",version="1"} 1.0' in found[2]
    assert said.getvalue() == "(1, 16, 16, 16)\n" * 2
