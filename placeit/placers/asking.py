"""Run a placer with a time limit that it cannot exceed."""

from __future__ import annotations

import ctypes
import functools
import inspect
import math
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.errors import FileError, PlaceitError, PlacementError, UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.core.threads import CHECK_S, Gate, Worker
from placeit.placers.base import Measured, Placer, RefiningPlacer
from placeit.placers.exact import Exact

__all__ = ["ask", "check_able"]

_GRACE_S = 1.0  # seconds that a placer may run after its deadline, and once more after it has been told to end


class _Ended(BaseException):
    """Exception that ends a placer after its deadline; no Exception, which placers may catch."""


def ask(
    placer: Placer,
    problem: Problem,
    cost: CostFunction,
    *,
    seed: int,
    evaluations: int | None = None,
    deadline: float = math.inf,
    measured: Measured | None = None,
) -> NDArray[np.int32]:
    """Return a placer's checked answer, ``int32[V]``.

    The placer runs on a separate thread, so that Ctrl-C takes effect whatever it computes. A plug-in's placer that runs for a
    second after its deadline gets an exception between two of its Python instructions. If it is not in Python code, its thread
    is left running.

    Args:
        placer: the placer. A placer whose method has no parameter ``deadline`` is not told its deadline.
        problem: the problem.
        cost: values placements.
        seed: seed of everything random.
        evaluations: most placements that it may value in ``place``; None for its own default.
        deadline: when it should have answered, by :func:`placeit.core.clock.now`.
        measured: measured placements, from which a :class:`placeit.placers.base.RefiningPlacer` refines; other placers place
            anew. None to have all of them place anew.

    Raises:
        PlacementError: the answer is not valid, the placer gave none in time, or it failed with an error that is not placeit's.
        PlaceitError: the placer raised another error of placeit.
        KeyboardInterrupt: the placer, or the wait for it, was interrupted.
    """
    answer: Callable[..., NDArray[np.int32]] = functools.partial(placer.place, problem, cost, evaluations=evaluations)
    if measured is not None and isinstance(placer, RefiningPlacer):
        answer = functools.partial(placer.refine, problem, cost, measured)
    parameters = inspect.signature(answer.func).parameters  # type: ignore[attr-defined]
    told = {"deadline": deadline} if "deadline" in parameters and deadline < math.inf else {}
    made: list[NDArray[np.int32]] = []
    failures: list[BaseException] = []
    over, ident = Gate(), [0]

    def run() -> None:
        ident[0] = threading.get_ident()
        try:
            made.append(answer(seed=seed, **told))
        except BaseException as error:  # noqa: BLE001 (the caller of ``ask`` raises it)
            failures.append(error)
        over.open()

    worker = Worker("placeit placer")
    try:
        worker.submit(run)
        # placeit's own placers keep to their deadline
        own = type(placer).__module__.startswith("placeit.")
        if not _wait(over, math.inf if own else deadline - clock.now() + _GRACE_S):
            _end(ident[0])
            _wait(over, _GRACE_S)
    except BaseException:
        if not over.is_open:
            _end(ident[0])
        raise
    finally:
        if over.is_open:
            worker.close()
    if made:
        return problem.check(made[0])
    if not failures or isinstance(failures[0], _Ended):
        state = "It was ended" if failures else "It still runs, and slows down what is measured"
        raise PlacementError(f"It gave no answer by its deadline. {state}: give it fewer evaluations, or a larger budget.")
    if isinstance(failures[0], PlaceitError | KeyboardInterrupt):
        raise failures.pop()
    raise PlacementError(f"It failed: {type(failures[0]).__name__}: {failures[0]}") from failures.pop()


def check_able(name: str, placer: Placer, devices: int) -> None:
    """Check that a placer of placeit can run, by placing two ops, so that a missing package is noticed before measuring.

    Args:
        name: its name in messages.
        placer: the placer; a plug-in's is not tried, since its run could take any time.
        devices: number of devices to place on.

    Raises:
        UsageError: a package is not installed, an option is out of its range, or its policy is of another kind or for fewer
            devices.
        FileError: a file that it needs is missing or damaged.
    """
    if not type(placer).__module__.startswith("placeit.") or isinstance(placer, Exact):  # 'exact' would only lack evaluations
        return
    free, at_once = np.zeros((devices, devices)), np.full((devices, devices), np.inf)
    two = Problem.from_arrays(np.ones((2, devices)), [(0, 1)], [1.0], at_once, free)
    try:
        ask(placer, two, lambda rows: np.ones(len(rows)), seed=0, evaluations=0)
    except (UsageError, FileError) as error:
        raise type(error)(f"The placer '{name}' cannot be asked: {error}") from error
    except PlaceitError:
        return  # other errors are reported when the search runs the placer on the model


def _wait(over: Gate, seconds: float) -> bool:
    until = time.perf_counter() + seconds
    while not over.is_open and (left := until - time.perf_counter()) > 0:
        over.wait(min(CHECK_S, left))
    return over.is_open


def _end(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Ended))
