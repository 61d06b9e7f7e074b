"""Bundles of models with open sizes run at any size in range, and refuse ranges that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import placeit
from placeit.application import Application
from placeit.cli import app
from placeit.core.errors import FileError, UsageError
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.bundled import edited
from tests.open_models import LENGTHS, OPEN, TWO, assert_close, at_one_size, attention, divided, onnx_attention, values

pytestmark = pytest.mark.two_cores


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An encoder in three parts on two cores, and a bundle of it."""
    folder = tmp_path_factory.mktemp("open")
    model, bundle = attention(folder), folder / "encoder.placeit"
    with Session(model, TWO, inputs=Inputs(shapes=OPEN), cache=None) as session:
        session.build(divided(session, 3), bundle)
    return model, bundle


def test_a_bundle_runs_every_size_in_range_and_no_other(built: tuple[Path, Path]) -> None:
    model, bundle = built
    with Application.load(bundle) as application:
        assert [spec.limits for spec in application.inputs] == [((1, 1), (1, 64))] * 2
        assert application.check().max_rel <= application.tolerance
        for length in LENGTHS:
            inputs = values(length)
            expected = at_one_size(model, inputs)
            assert_close(application.run(inputs), expected)
            assert_close(application.session.reference(inputs), expected)
        with pytest.raises(UsageError, match=r"The input 'ids' is int64 \[1, 65\]; .* expects int64 \[1, 1..64@16\]"):
            application.run(values(65))
        with pytest.raises(UsageError, match=r"do not fit each other: 'ids' \[1, 9\], 'mask' \[1, 8\]"):
            application.run({"ids": values(9)["ids"], "mask": values(8)["mask"]})
        assert_close(application.run(inputs), expected)


def test_segments_of_both_runtimes_run_every_size(tmp_path: Path) -> None:
    model, bundle = onnx_attention(tmp_path), tmp_path / "both.placeit"
    with Session(model, [f"ort:{TWO[0]}", TWO[1]], inputs=Inputs(shapes=OPEN), cache=None) as session:
        session.build(divided(session, 4), bundle)
    with Application.load(bundle) as application:
        for length in LENGTHS:
            inputs = values(length)
            assert_close(application.run(inputs), at_one_size(model, inputs))


def test_the_command_runs_a_bundle_at_the_size_of_the_inputs(built: tuple[Path, Path], tmp_path: Path) -> None:
    model, bundle = built
    given, answer = tmp_path / "given.npz", tmp_path / "answer.npz"
    inputs = values(41)
    np.savez(given, **inputs)
    asked = ["run", str(bundle), "--inputs", str(given), "--outputs", str(answer), "--runs", "1"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert_close(dict(np.load(answer)), at_one_size(model, inputs))


def limits(of: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["inputs"][0].update(limits=of)


@pytest.mark.parametrize(
    "change",
    [
        limits([[1, 1]]),
        limits([[1, 1], [1, 8]]),
        limits([[1, 1], [17, 64]]),
        limits([[1, 1], [-1, 64]]),
        limits([[1, 1], [1, 2**31]]),
        limits([[1, 1], [1, 1e400]]),
        limits([[1, 1], [1, None]]),
        limits([[1, 1], 64]),
        limits({"1": 2}),
        limits("12"),
        limits(7),
        lambda data: data["graph"]["tensors"][0].update(limits=[[1, 1], [1, 8]]),
    ],
)
def test_ranges_that_make_no_sense_are_refused(
    built: tuple[Path, Path], tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(FileError, match="contradicts itself"):
        placeit.load(edited(built[1], tmp_path / "edited.placeit", change))
