"""Run a placer on a separate thread, with a deadline that it cannot exceed."""

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

_GRACE_S = 1.0  # seconds from a placer's deadline to the exception that ends it, and from there to giving up


class _Ended(BaseException):
    """Raised inside a placer to end it after its deadline; not an ``Exception``, since placers may catch these."""


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
    """Run a placer, and return its placement after checking it, ``int32[V]``.

    The placer runs on a separate thread, so that Ctrl-C takes effect whatever it computes. If a plug-in's placer still runs a
    second after its deadline, an exception is raised between two of its Python instructions. If it does not return to Python
    code, its thread is left running.

    Args:
        placer: the placer. If its method has no parameter ``deadline``, it is called without one.
        problem: the problem.
        cost: values placements.
        seed: seed of all random draws.
        evaluations: maximum number of placements that ``place`` may value; None for the placer's default.
        deadline: time by :func:`placeit.core.clock.now` at which the placer should have returned.
        measured: measured placements, from which a :class:`placeit.placers.base.RefiningPlacer` continues. Other placers start
            again, and with None all of them do.

    Raises:
        PlacementError: the placement is not valid, it is not there in time, or the placer failed with an error that is not
            placeit's.
        PlaceitError: the placer raised another error of placeit.
        KeyboardInterrupt: the placer, or the wait for it, was interrupted.
    """
    method: Callable[..., NDArray[np.int32]] = functools.partial(placer.place, problem, cost, evaluations=evaluations)
    if measured is not None and isinstance(placer, RefiningPlacer):
        method = functools.partial(placer.refine, problem, cost, measured)
    parameters = inspect.signature(method.func).parameters  # type: ignore[attr-defined]
    limits = {"deadline": deadline} if "deadline" in parameters and deadline < math.inf else {}
    placements: list[NDArray[np.int32]] = []
    failures: list[BaseException] = []
    done, thread_id = Gate(), [0]

    def run() -> None:
        thread_id[0] = threading.get_ident()
        try:
            placements.append(method(seed=seed, **limits))
        except BaseException as error:  # noqa: BLE001 (the caller of ``ask`` raises it)
            failures.append(error)
        done.open()

    worker = Worker("placeit placer")
    try:
        worker.submit(run)
        # placeit's own placers keep to their deadline
        if not _wait(done, math.inf if _is_own(placer) else deadline - clock.now() + _GRACE_S):
            _end(thread_id[0])
            _wait(done, _GRACE_S)
    except BaseException:
        if not done.is_open:
            _end(thread_id[0])
        raise
    finally:
        if done.is_open:
            worker.close()
    if placements:
        return problem.check(placements[0])
    if not failures or isinstance(failures[0], _Ended):
        state = "It was ended" if failures else "It still runs, and slows down what is measured"
        raise PlacementError(f"It gave no answer by its deadline. {state}: give it fewer evaluations, or a larger budget.")
    if isinstance(failures[0], PlaceitError | KeyboardInterrupt):
        raise failures.pop()
    raise PlacementError(f"It failed: {type(failures[0]).__name__}: {failures[0]}") from failures.pop()


def check_able(name: str, placer: Placer, devices: int) -> None:
    """Check that a placer of placeit can run, by placing two ops, so that a missing package is noticed before measuring.

    Args:
        name: name of the placer in messages.
        placer: the placer. A plug-in's placer is not tried, since it could take any time.
        devices: number of devices to place on.

    Raises:
        UsageError: a package is not installed, an option is out of its range, or its policy is of another kind or for fewer
            devices.
        FileError: a file that it needs is missing or damaged.
    """
    if not _is_own(placer) or isinstance(placer, Exact):  # 'exact' would only lack evaluations
        return
    latency, bandwidth = np.zeros((devices, devices)), np.full((devices, devices), np.inf)
    two_ops = Problem.from_arrays(np.ones((2, devices)), [(0, 1)], [1.0], bandwidth, latency)
    try:
        ask(placer, two_ops, lambda rows: np.ones(len(rows)), seed=0, evaluations=0)
    except (UsageError, FileError) as error:
        raise type(error)(f"The placer '{name}' cannot be asked: {error}") from error
    except PlaceitError:
        return  # other errors are reported when the search runs the placer on the model


def _is_own(placer: Placer) -> bool:
    return type(placer).__module__.startswith("placeit.")


def _wait(done: Gate, timeout: float) -> bool:
    """Wait until a gate is open, for at most ``timeout`` seconds, and return whether it is; Ctrl-C ends the wait."""
    end = time.perf_counter() + timeout
    while not done.is_open and (left := end - time.perf_counter()) > 0:
        done.wait(min(CHECK_S, left))
    return done.is_open


def _end(thread: int) -> None:
    """Raise :class:`_Ended` in a thread at its next Python instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Ended))
