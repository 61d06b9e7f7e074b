"""Fixtures that several folders of tests share."""

import functools
import itertools
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from examples.models import export_model
from placeit.backends import load
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core import clock
from placeit.core.errors import DeviceError
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache

# how long an example takes says how busy the machine is, and a test says the same each time
settings.register_profile("placeit", deadline=None, derandomize=True)
settings.load_profile("placeit")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("two_cores") is not None and len(allowed_cores()) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")


@pytest.fixture(scope="session", autouse=True)
def _counted_time() -> Iterator[None]:
    """Let a millisecond pass with each look at the clock: what a budget is enough for must not say how busy a machine is."""
    looks = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: next(looks) * 1e-3)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Have PyTorch compute on one thread, here and in processes that tests start: on busy cores, two wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Export one of the built-in models as ONNX, once in the whole test run."""
    folder = tmp_path_factory.mktemp("models")
    yield functools.cache(lambda name: export_model(name, folder / f"{name}.onnx"))
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def loaded_model(model_file: Callable[[str], Path]) -> Callable[[str], OpenVinoModel]:
    """Load one of the built-in models, once in the whole test run."""
    return functools.cache(lambda name: load(model_file(name)))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """A cost cache that all tests share, so that each small model is profiled once; runs of searches are their own."""
    return Cache(tmp_path_factory.mktemp("costs"), runs=False)


# one thread of gRPC's, which ends when the last of its objects is collected, and one of tqdm's, which ends with the process
_OF_LIBRARIES = ("_poll_wrapper", "tqdm_monitor")


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return  # Ray keeps its threads until it is shut down
    deadline = time.monotonic() + 30.0  # threads end late on a busy machine

    def leaked() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if not any(name in t.name for name in _OF_LIBRARIES)} - before

    while leaked() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not (left := leaked()), f"the test left threads running: {sorted(thread.name for thread in left)}"


@pytest.fixture(scope="module", autouse=True)
def _no_connection_left() -> Iterator[None]:
    """Which a later module, in whatever order they run, could not have beside its own."""
    yield
    connection = sys.modules.get("placeit.devices.nodes.connection")
    if connection is not None:
        with pytest.raises(DeviceError, match="connected to no Ray cluster"):
            connection.connected()
