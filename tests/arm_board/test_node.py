"""A Ray cluster of this machine and an ARM node: an emulated board, on which OpenVINO's plugin for ARM computes."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.errors import DeviceError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.runtime.nodes import device
from placeit.runtime.nodes.device import NodeDevice
from placeit.session import Session
from tests.arm_board.build import on_board
from tests.open_models import divided
from tests.small_models import inception_like

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800, method="thread")]

HERE, THERE = f"CPU@{allowed_cores()[0]}", f"board/CPU@{allowed_cores()[-1]}"
TIMEOUT_S = 900.0  # emulation is slow: Ray and OpenVINO are imported for a minute and more
ERROR = 1e-5
EMULATED = {
    "RAY_agent_register_timeout_ms": "900000",
    "RAY_worker_register_timeout_seconds": "900",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",  # the board has another Python 3.11
}


def machine() -> Callable[[], str]:
    """Return a function that imports OpenVINO and returns the kind of processor. Ray sends its code: the board has no tests."""

    def ask() -> str:
        import platform

        from placeit.devices.openvino import openvino_core

        return platform.machine() if openvino_core().available_devices else ""

    return ask


_call = connection.Nodes.call


def patiently(nodes: connection.Nodes, name: str, job: Any, _: float = 0.0, *left: Any, **given: Any) -> Any:
    """Run a job on a node, as the method of its connection does, and wait for longer."""
    return _call(nodes, name, job, TIMEOUT_S, *left, **given)


@pytest.fixture(scope="module")
def nodes(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[connection.Nodes]:
    work, file = tmp_path_factory.mktemp("board"), tmp_path_factory.mktemp("cluster") / "cluster.json"
    shutil.copy(Path(__file__).with_name("start_ray.py"), work)
    board = local.Place(enter=(*on_board(root, work), "python3", "start_ray.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_HEALTH", EMULATED)
        patch.setattr(local, "_STARTS_S", TIMEOUT_S)
        patch.setattr(device, "_START_TIMEOUT_S", TIMEOUT_S)
        patch.setattr(connection.Nodes, "call", patiently)
        patch.setattr(NodeDevice, "ask", functools.partialmethod(NodeDevice.ask, timeout=TIMEOUT_S))
        cluster = local.start(("head",), file)
        there = root / cluster.folder[1:]
        try:
            there.mkdir(parents=True)
            shutil.copy(cluster.token, there)
            local.start_node(cluster, "board", board)
            connected = connection.connect(cluster.address, token=cluster.token, patience=TIMEOUT_S)
            ray, board_only = connection.ray_module(), connection.pinned(connected.node("board"))
            # two processes that have imported all: Ray gives them to the device and to questions
            asked = ray.remote(num_cpus=0)(machine()).options(scheduling_strategy=board_only)
            assert ray.get([asked.remote(), asked.remote()], timeout=TIMEOUT_S) == ["aarch64", "aarch64"]
            yield connected
        finally:
            connection.disconnect()
            cluster.stop(file)
            shutil.rmtree(there, ignore_errors=True)
    assert cluster.pids() == []


def test_a_model_split_over_this_machine_and_an_arm_node_computes_what_this_machine_does(nodes: connection.Nodes) -> None:
    model = inception_like()
    with Session(model, [HERE, THERE], cache=None) as session:
        assert session.run(divided(session, 4), runs=2, warmup=1).output_error.max_rel < ERROR
        batches = [model.random_inputs(seed) for seed in range(3)]
        with session.serve(divided(session, 4), in_flight=2) as server:
            for inputs, answer in [(inputs, server.submit(inputs)) for inputs in batches]:
                for name, value in session.reference(inputs).items():
                    np.testing.assert_allclose(answer.result(TIMEOUT_S)[name], value, rtol=1e-4, atol=1e-4)


def test_a_runtime_that_an_arm_node_lacks_is_an_error_that_says_so(nodes: connection.Nodes) -> None:
    with pytest.raises(DeviceError, match="The node 'board': ONNX Runtime cannot be imported"):
        discover(["board/ort:CPU"])
