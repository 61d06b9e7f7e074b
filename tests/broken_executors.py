"""Executors that fail, or take as long as a test says, for tests of what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from placeit.core.errors import DeviceError, ExecutionError
from placeit.optimizer.races import Races
from placeit.session import Session
from placeit.workbench import Workbench

NO_ROOM = "The plan does not fit on cuda:1: it needs 9 GiB."


class Wrapped:
    """An executor that does all that another one does."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def __enter__(self) -> Any:
        self.executor.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.executor.__exit__(*error)


class Broken(Wrapped):
    """An executor that fails from one of its steps on."""

    def __init__(self, executor: Any, stage: str) -> None:
        super().__init__(executor)
        self.stage, self.runs = stage, 0

    def run(self, inputs: Any) -> Any:
        if self.stage == "checking":
            raise ExecutionError("The device fell silent")
        self.executor.run(inputs)
        return self.outputs()

    def outputs(self) -> Any:
        scale = 1.01 if self.stage == "wrong" else 1
        return {name: value * scale for name, value in self.executor.outputs().items()}

    def time(self) -> float:
        self.runs += 1
        if (self.stage, self.runs) in {("first run", 1), ("race", 5)}:
            raise ExecutionError("The device fell silent")
        return float(self.executor.time())


def broken(monkeypatch: pytest.MonkeyPatch, stage: str, which: Callable[[Any], bool]) -> None:
    """Let plans fail in sessions."""
    original = Workbench.executor

    def executor(self: Session, plan: Any, **options: Any) -> Any:
        if not which(plan):
            return original(self, plan, **options)
        if stage == "opening":
            raise DeviceError(NO_ROOM)
        return Broken(original(self, plan, **options), stage)

    monkeypatch.setattr(Workbench, "executor", executor)
    monkeypatch.setattr(Races, "_by_itself", lambda *_: None)  # plain devices, too, are sessions' executors


def devices_of(plan: Any) -> set[int]:
    return {segment.device for segment in plan.segments}


class Timed(Wrapped):
    """An executor that runs, and says that it took as long as a test wants."""

    def __init__(self, executor: Any, seconds: float) -> None:
        super().__init__(executor)
        self.seconds = seconds

    def time(self) -> float:
        self.executor.time()
        return self.seconds


def taking(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Session, set[int]], float]) -> None:
    """Have runs take so long, by the session that they are of and the devices that they use."""
    original = Workbench.executor

    def executor(self: Session, plan: Any, **options: Any) -> Any:
        return Timed(original(self, plan, **options), seconds(self, {segment.device for segment in plan.segments}))

    monkeypatch.setattr(Workbench, "executor", executor)
    monkeypatch.setattr(Races, "_by_itself", lambda *_: None)  # plain devices, too, are sessions' executors
