"""Runs a placer with a time limit, whatever the placer does."""

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
from placeit.core.threads import Gate, Worker
from placeit.placers.base import Measured, Placer, RefiningPlacer
from placeit.placers.exact import Exact

__all__ = ["ask", "check_able"]

_GRACE_S = 1.0  # after its deadline, for a placer to come to an end; and as much again for one that is told to
_LOOK_S = 0.5


class _Ended(BaseException):
    """Ends a placer that goes on for too long; no Exception, which placers may catch."""


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

    The placer runs on a thread of its own, so that Ctrl-C is heard whatever it computes. One that goes on for a second after
    its deadline gets an exception between two of its instructions in Python. If it computes somewhere else, it is left behind.

    Args:
        placer: who is asked. One whose method has no ``deadline`` is not told of it.
        problem: the problem.
        cost: values placements.
        seed: of everything random.
        evaluations: most placements that it may value when it places; None for its own default.
        deadline: by :func:`placeit.core.clock.now`.
        measured: what to go on from, for each :class:`placeit.placers.base.RefiningPlacer`; other placers are asked to place.
            None to ask all of them to place.

    Raises:
        PlacementError: the answer is not valid, the placer gave none in time, or it failed with an error that is not placeit's.
        PlaceitError: whatever else the placer raised.
        KeyboardInterrupt: the placer was interrupted, or the wait for it.
    """
    answer: Callable[..., NDArray[np.int32]] = functools.partial(placer.place, problem, cost, evaluations=evaluations)
    if measured is not None and isinstance(placer, RefiningPlacer):
        answer = functools.partial(placer.refine, problem, cost, measured)
    parameters = inspect.signature(answer).parameters
    told = {"deadline": deadline} if "deadline" in parameters and deadline < math.inf else {}
    made: list[NDArray[np.int32]] = []
    failures: list[BaseException] = []
    over, ident = Gate(), [0]

    def run() -> None:
        ident[0] = threading.get_ident()
        try:
            made.append(answer(seed=seed, **told))
        except BaseException as error:  # noqa: BLE001 (whatever it is, it belongs to who asked)
            failures.append(error)
        over.open()

    worker = Worker("placeit placer")
    try:
        worker.submit(run)
        # those of placeit keep to their deadline
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
    """Have a placer of placeit's own place two ops, so that what it lacks is known before anything is measured.

    Args:
        name: how it was asked for, for the error.
        placer: one of a plug-in is not tried: nobody knows what that takes.
        devices: how many devices it is going to place on.

    Raises:
        UsageError: a package is not installed, an option is out of its range, or its policy is of another kind or for fewer
            devices.
        FileError: a file that it needs is missing or damaged.
    """
    if not type(placer).__module__.startswith("placeit.") or isinstance(placer, Exact):  # it lacks nothing but evaluations
        return
    free, at_once = np.zeros((devices, devices)), np.full((devices, devices), np.inf)
    two = Problem.from_arrays(np.ones((2, devices)), [(0, 1)], [1.0], at_once, free)
    try:
        ask(placer, two, lambda rows: np.ones(len(rows)), seed=0, evaluations=0)
    except (UsageError, FileError) as error:
        raise type(error)(f"The placer '{name}' cannot be asked: {error}") from error
    except PlaceitError:
        return  # whatever else it is, the search says so when it is asked about the model


def _wait(over: Gate, seconds: float) -> bool:
    until = time.perf_counter() + seconds
    while not over.is_open and (left := until - time.perf_counter()) > 0:
        over.wait(min(_LOOK_S, left))
    return over.is_open


def _end(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Ended))
