"""Fixtures of the tests that need an Intel GPU: a real one, or the emulated one of ``tests/emulated_gpu``."""

from pathlib import Path

import pytest

from placeit.devices.openvino import openvino_core

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("intel_gpu")


@pytest.fixture(scope="session")
def gpus() -> list[str]:
    """Names of the Intel GPUs that OpenVINO finds; the test is skipped if there is none."""
    found = [name for name in openvino_core().available_devices if name.split(".")[0] == "GPU"]
    if not found:
        pytest.skip("needs an Intel GPU with its driver, or the emulated one: make intel-gpu")
    return found
