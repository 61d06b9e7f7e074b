"""Fixtures of the tests that need an Intel GPU: a real one, or the emulated one of ``tests/emulated_gpu``."""

import os
from pathlib import Path

import pytest
from emulated_gpu.build import MISSING

from placeit.devices.openvino import openvino_core

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("intel_gpu")


@pytest.fixture(scope="session")
def gpus() -> list[str]:
    """Names of the Intel GPUs that OpenVINO finds; if there is none, the test is skipped, or fails in CI."""
    found = [name for name in openvino_core().available_devices if name.split(".")[0] == "GPU"]
    if not found:
        reason = "needs an Intel GPU with its driver, or the emulated one: make intel-gpu"
        if missing := os.environ.get(MISSING):
            reason = f"{reason}. {missing}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
