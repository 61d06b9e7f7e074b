"""Fixtures of the tests that need an Intel GPU: a real one, or the emulated one of ``tests/emulated_gpu``."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from placeit.cli import app
from placeit.cli.terminal import Lines
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.session import Session
from tests.emulated_gpu.models import branches
from tests.gpu_plans import Devices, Opened, intel_gpus
from tests.schema_check import check_printed

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("intel_gpu")


@pytest.fixture(scope="session")
def gpus() -> list[str]:
    """Names of the Intel GPUs that OpenVINO finds; without one, the test is skipped, or fails in CI."""
    return intel_gpus()


@pytest.fixture(scope="session")
def devices(gpus: list[str]) -> tuple[str, ...]:
    """The CPU and the first two GPUs, or the only one."""
    return ("CPU", *gpus[:2])


@pytest.fixture(scope="session")
def gpu(gpus: list[str]) -> str:
    """The first GPU."""
    return gpus[0]


@pytest.fixture(scope="session", autouse=True)
def cost_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep measured costs and compiled programs for all tests here, because GPUs take seconds to compile one."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("PLACEIT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def compiled_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tests that compile the same model compile it once, as that takes seconds."""
    monkeypatch.setenv("PLACEIT_MODEL_CACHE", str(kept))


@pytest.fixture
def opened(gpus: list[str], compiled_once: None) -> Iterator[Opened]:
    """Open runtimes on a core and the first two GPUs, closed after the test; takes the arguments of ``Devices``."""
    with contextlib.ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Devices:
            made = Devices(gpus[:2], *args, **options)
            stack.callback(made.runtime.close)
            return made

        yield make


@pytest.fixture(scope="session")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer, two layers beside each other, and their sum."""
    return branches(tmp_path_factory.mktemp("mlp"))


@pytest.fixture(scope="session")
def session(devices: tuple[str, ...], mlp: Path) -> Iterator[Session]:
    """The layers on all devices, without costs, open for all tests: programs that one has compiled are there for the next."""
    with Session(mlp, devices, cache=None) as opened:
        _ = opened.runtime  # its threads are there before a test begins
        yield opened


@pytest.fixture(scope="session")
def known_costs(devices: tuple[str, ...], mlp: Path, cost_cache: Path) -> None:
    """Have what the layers cost on all devices in the cost cache, measured completely however busy the machine is."""
    _profile(mlp, devices, cost_cache)


@pytest.fixture(scope="session")
def pair(gpu: str, mlp: Path, cost_cache: Path) -> tuple[str, str]:
    """The first GPU and a CPU core, on which it is known what the layers cost."""
    devices = (gpu, f"CPU@{allowed_cores()[0]}")
    _profile(mlp, devices, cost_cache)
    return devices


def _profile(model: Path, devices: Sequence[str], folder: Path) -> None:
    with Session(model, devices, cache=Cache(folder)) as session:
        session.profile(budget_s=600)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Call ``placeit`` in this process, in the test's own folder; return what its JSON says, or how it failed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Lines, "EVERY", math.inf)

    def call(*args: object, fails: bool = False) -> Any:
        result = CliRunner().invoke(app, [*map(str, args), *([] if fails else ["--json"])])
        assert (result.exit_code != 0) == fails, result.stderr
        return result if fails else check_printed(result.stdout)

    return call
