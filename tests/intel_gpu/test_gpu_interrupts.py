"""Ctrl-C while Intel GPUs compile and run: the process ends soon, by the code that says so, and says no more than that."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.intel_gpu import interrupted, on_all
from placeit.session import Session


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Ctrl-C has its effect in the processes that a test starts, though a shell may have started this one without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("moment", "after"), [("compiling", 0.5), ("compiling", 3.0), ("racing", 0.0), ("racing", 1.0)])
def test_ctrl_c_ends_a_command_that_compiles_or_runs_on_gpus(
    mlp: Path, session: Session, tmp_path: Path, cost_cache: Path, moment: str, after: float
) -> None:
    on_all(session).save(tmp_path / "split.json")
    ended = interrupted(mlp, tmp_path / "split.json", moment, after, cost_cache)
    assert ended.as_it_should, ended
