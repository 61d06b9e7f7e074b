"""Every snippet of the pages for users runs, with what the pages say before it."""

import contextlib
import functools
import os
import re
import shlex
import sys
import types
from pathlib import Path
from typing import cast

import onnx
import pytest
import typer
from typer.main import get_command

import placeit
from placeit.cli import app, demo
from placeit.devices.host import allowed_cores
from tests.docs.pages import DOCS, PAGES, Reader, blocks
from tests.steady import STEADY

SLOW = [page for page in PAGES if any(block.note == "slow" for block in blocks(page))]

pytestmark = pytest.mark.skipif(not {0, 1} <= set(allowed_cores()), reason="needs the CPU cores 0 and 1, which the pages name")


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs")


@pytest.fixture
def reader(tmp_path: Path, costs: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader in a folder with the files of `placeit demo`, whose model is narrower, so that runs are short."""
    monkeypatch.setattr(demo, "_CHANNELS", 8)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACEIT_CACHE", str(costs))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)  # as for a program that is started there
    onnx.save(demo.demo_model(), "model.onnx")
    boards = next(block.text for block in blocks("start.md") if block.title == "boards.yaml")
    Path("boards.yaml").write_text(boards, encoding="utf-8")
    return Reader()


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_can_be_done(page: str, reader: Reader) -> None:
    reader.read(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_what_takes_long_on_a_page_can_be_done(page: str, reader: Reader) -> None:
    try:
        reader.read(page, "slow")
    finally:
        reader.command("placeit cluster down")  # if it was left up


@pytest.mark.slow
@pytest.mark.parametrize("package", ["diffusers", "transformers"])
def test_models_of_other_packages_are_placed_as_the_page_shows(package: str, reader: Reader) -> None:
    pytest.importorskip(package)
    reader.names |= {"placeit": placeit, "torch": pytest.importorskip("torch")}
    reader.read("torch.md", f"not run: needs {package}")
    reader.names["placed"].close()


def test_a_search_is_logged_to_mlflow_and_tensorboard(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the page uses them: both were tried once with the packages themselves."""
    logged: dict[str, list[tuple[str, float, int]]] = {"mlflow": [], "runs/search": []}

    class Writer(contextlib.nullcontext["Writer"]):
        def __init__(self, log_dir: str) -> None:
            super().__init__(self)
            self.log_dir = log_dir

        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
            logged[self.log_dir].append((tag, scalar_value, global_step or 0))

    def log_metric(key: str, value: float, step: int | None = None) -> None:
        logged["mlflow"].append((key, value, step or 0))

    mlflow = types.SimpleNamespace(start_run=contextlib.nullcontext, log_metric=log_metric)
    monkeypatch.setitem(sys.modules, "mlflow", cast("types.ModuleType", mlflow))
    tensorboard = cast("types.ModuleType", types.SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setattr(placeit, "optimize", functools.partial(placeit.optimize, budget=1, policy=STEADY))
    defined = next(block.text for block in blocks("how_to.md") if "def log(metric, event)" in block.text)
    exec(defined.partition("\n\n\nplaceit.")[0], reader.names)
    for tool in ("MLflow", "TensorBoard"):
        reader.read("how_to.md", f"not run: needs {tool}")
    for rows in logged.values():
        values = [value for name, value, step in rows if name == "best_s" and step > 0]
        assert rows
        assert len(values) == len(rows)
        assert values == sorted(values, reverse=True)


def test_the_commands_of_the_tasks_of_a_first_day_have_options_that_exist() -> None:
    text = (DOCS / "how_to.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| \[.*\]\(.*\) \| `placeit (.*)` \|$", text, re.MULTILINE)
    assert len(rows) > 15
    group = get_command(app)
    for words in map(shlex.split, rows):
        context = typer.Context(group)
        command = group.get_command(context, words[0])
        assert command is not None, words
        command.make_context(words[0], words[1:])
