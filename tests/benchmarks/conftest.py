"""Benchmarks as commands that do little: a small model in place of the real ones, and searches with small budgets."""

import importlib
import inspect
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import onnx
import pytest
from onnx import helper

from benchmarks import _models  # noqa: F401 (before those that take functions from it)
from benchmarks._architectures.graphs import _save, _Weights
from placeit.devices.host import allowed_cores
from tests.schema_check import check_printed
from tests.steady import optimize


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks of two branches of convolutions each, as an ONNX file."""
    weights, nodes, value = _Weights(), list[onnx.NodeProto](), "image"
    for block in range(3):
        for branch in range(2):
            inner = value
            for layer in range(2):
                name, channels = f"conv_{block}_{branch}_{layer}", 3 if inner == "image" else 16 if inner == value else 8
                convolution = [inner, weights(8, channels, 3, 3, scale=0.1)]
                inner = f"{name}_relu"
                nodes.append(helper.make_node("Conv", convolution, [name], name=name, pads=[1] * 4))
                nodes.append(helper.make_node("Relu", [name], [inner], name=inner))
        branches, value = [f"conv_{block}_{branch}_1_relu" for branch in range(2)], f"join_{block}"
        nodes.append(helper.make_node("Concat", branches, [value], name=value, axis=1))
    folder = tmp_path_factory.mktemp("small")
    return _save(folder / "small.onnx", nodes, {"image": [1, 3, 32, 32]}, {value: [1, 16, 32, 32]}, weights.made)


@dataclass(frozen=True)
class Result:
    """What the JSON of a benchmark has."""

    rows: list[dict[str, Any]]
    claims: Mapping[str, dict[str, Any]]


@pytest.fixture
def _levels_restored() -> Iterator[None]:
    """Restore the levels of loggers that benchmarks silence; otherwise each benchmark runs in a separate process."""
    loggers = {
        logging.getLogger(name): logging.getLogger(name).level for name in ("placeit", "placeit.optimizer.measured_cost")
    }
    yield
    for logger, level in loggers.items():
        logger.setLevel(level)


@pytest.fixture
def command(
    _levels_restored: None,
    small_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Result]:
    """Run ``python -m benchmarks.NAME ARGUMENTS --json`` in this process, on the small model; return what it prints."""
    if len(allowed_cores()) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    monkeypatch.delenv("PLACEIT_DATA", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # some set it for themselves and their children

    def searched(*args: Any, budget: float, **options: Any) -> Any:
        return optimize(*args, budget=min(budget, 1.0), **options)

    def run(name: str, arguments: str = "--quick", least: Mapping[str, Any] | None = None) -> Result:
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"benchmarks.{name}.__main__")
        for what, value in (least or {}).items():
            place, _, attribute = what.rpartition(":")
            monkeypatch.setattr(importlib.import_module(f"benchmarks.{place}") if place else module, attribute, value)
        for what, small in (("optimize", searched), ("model_file", lambda _: small_file)):
            for loaded in [one for at, one in sys.modules.items() if at.startswith("benchmarks.")]:
                if isinstance(getattr(loaded, what, None), FunctionType):
                    monkeypatch.setattr(loaded, what, small)
        results = tmp_path / "results"
        monkeypatch.setattr(sys, "argv", [name, *arguments.split(), "--json", "--results", str(results)])
        capsys.readouterr()
        code: Any = 0
        try:  # what follows the guard, in the module whose work has been made small
            exec(textwrap.dedent(inspect.getsource(module).partition('\nif __name__ == "__main__":\n')[2]), vars(module))
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        printed = check_printed(said.out) if said.out else {"claims": [], "rows": []}
        broken = [claim for claim in printed["claims"] if claim["holds"] is False]
        assert code in (None, 0), f"exit code {code}; {broken}\n{said.err}"
        assert not printed["rows"] or f"python -m benchmarks.{name} " in (results / "report.md").read_text()
        return Result(printed["rows"], {claim["name"]: claim for claim in printed["claims"]})

    return run
