"""A server under load and in trouble for 20 minutes: every request must end and be right, and memory must not grow.

Inception-V3 is served on two one-core devices, cut in the middle by work, with three requests in flight and a few waiting all
the time. Every third request comes with trouble, of twelve kinds in turns: it is cancelled, its deadline passes soon, its owner
reshapes its arrays or sets its future, a callback of its future raises an exception or SystemExit; or there is no memory to
count an answer or to tell of it, the bell or the queue of the server fails, the run in flight is given up, or another executor
runs on the same devices and gives up. A request may fail only if one of these was put into it, and every output is compared
with the output of the same inputs alone. Memory and threads of the process at the end are compared with those after the first
tenth of the time.

Before that, up to 100,000 requests wait on a device that computes nothing. This must slow down neither the server nor the
threads that submit.

The exit code is 1 if a bound is exceeded.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _waiting
from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, load_model, progress, two_cores
from placeit.core.errors import DeadlineError, ExecutionError
from placeit.core.memory import Use, own_use
from placeit.devices import discover
from placeit.runtime.feed import Bell
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.server import Answer, Server
from placeit.session import Session

_SECONDS, _QUICK, _ROWS = 1200.0, 5.0, 10
_GROWTH = Use(50e6, 0)  # most bytes and threads that a server may take more than at the start
_WAITING = (100, 1000, 10_000, 100_000)
_SAID = "said the benchmark"

Values = dict[str, NDArray[np.generic]]


@dataclass
class _Load:
    """A server, the requests made to it, and their outcomes.

    Attributes:
        cases: inputs and the outputs that belong to them.
        other: an executor on the same devices.
        ended: number of requests by outcome.
        troubles: number of troubles by kind.
        hit: requests that may fail.
    """

    server: Server
    executor: PlanExecutor
    other: PlanExecutor
    cases: list[tuple[Values, Values]]
    ended: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    hit: int = 0
    asked: int = 0
    waiting: deque[tuple[Answer, Values]] = field(default_factory=deque)

    def ask(self, *, deadline: float | None = None) -> tuple[Answer, Values]:
        """Submit a request."""
        inputs, outputs = self.cases[self.asked % len(self.cases)]
        self.asked += 1
        mine = {name: value.copy() for name, value in inputs.items()}
        answer = self.server.submit(mine, start_within_s=deadline)
        self.waiting.append((answer, outputs))
        return answer, mine

    def look(self, most: int) -> None:
        """Wait for answers until at most a number of requests is left."""
        while len(self.waiting) > most:
            self.ended[_outcome(*self.waiting.popleft())] += 1


def _late(load: _Load) -> None:
    with suppress(DeadlineError):
        load.ask(deadline=1e-3)
        return
    load.ended["late"] += 1


def _reshaped(load: _Load) -> None:
    _, inputs = load.ask()
    load.hit += 1
    for value in inputs.values():
        value.shape = (value.size,)


def _set(load: _Load) -> None:
    answer, _ = load.ask()
    with suppress(InvalidStateError):
        answer.set_exception(TimeoutError(_SAID))


def _called(error: type[BaseException]) -> Callable[[_Load], None]:
    def callback(_: object) -> None:
        raise error(_SAID)

    return lambda load: load.ask()[0].add_done_callback(callback)


def _fails(owner: Callable[[_Load], Any], name: str, error: type[Exception], hit: int) -> Callable[[_Load], None]:
    """Return a trouble that is one failing call."""

    def trouble(load: _Load) -> None:
        with _failing_once(owner(load), name, error) as happened:
            load.ask()
            for _ in range(1000):
                if happened:
                    break
                time.sleep(0.01)
        load.hit += hit * len(happened)

    return trouble


@contextmanager
def _failing_once(owner: Any, name: str, error: type[Exception]) -> Iterator[list[bool]]:
    original, happened = getattr(owner, name), list[bool]()

    def call(*args: Any, **named: Any) -> Any:
        if not happened:
            happened.append(True)
            raise error(_SAID)
        return original(*args, **named)

    mine = name in vars(owner)
    setattr(owner, name, call)
    try:
        yield happened
    finally:
        if mine:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def _somebody_else(load: _Load) -> None:
    load.ask()
    with suppress(ExecutionError):
        load.other.time(timeout=1e-3)


_TROUBLES: dict[str, Callable[[_Load], object]] = {
    "cancelled": lambda load: load.ask()[0].cancel(),
    "late": _late,
    "reshaped by its owner": _reshaped,
    "set by its owner": _set,
    "an error of a callback": _called(ValueError),
    "an exit in a callback": _called(SystemExit),
    "no memory to count an answer": _fails(lambda load: load.server, "_record", MemoryError, 0),
    "no memory to tell of an answer": _fails(lambda load: load.server, "tell", MemoryError, 0),
    "a bell that fails": _fails(lambda _: Bell, "wait", OSError, 0),
    "a queue that fails": _fails(lambda load: load.server, "take", MemoryError, 0),
    "a run that is given up": lambda load: (load.ask(), load.executor.give_up(_SAID)),
    "another executor that gives up": _somebody_else,
}


def run(args: Args, report: Report) -> None:
    """Fill the report."""
    seconds = args.seconds if args.seconds is not None else _QUICK if args.quick else _SECONDS
    core, _ = two_cores()
    _waiting.run(core, report, counts=_WAITING[: 2 if args.quick else None], seconds=0.2 if args.quick else 2.0)
    name = (args.models or ("inception_v3",))[0]
    choose = random.Random(args.seed)
    logging.getLogger("placeit").setLevel(logging.CRITICAL)  # which otherwise reports each trouble
    with Session(load_model(name), discover([f"CPU@{core}" for core in two_cores()]), cache=None) as session:
        session.profile(budget_s=2.0 if args.quick else 10.0)
        times = session.costs.core[:, 0]
        plan = session.plan_of(session.placement((np.cumsum(times) > times.sum() / 2).astype(np.int32)))
        other = session.executor(plan)
        cases = [(inputs, other.run(inputs)) for inputs in (session.model.random_inputs(seed) for seed in range(3))]
        executor = session.executor(plan, in_flight=3)
        with Server([executor], queue=8) as server:
            load = _Load(server, executor, other, cases)
            begin, first = time.perf_counter(), own_use()
            kinds: list[str] = []
            for row in range(1, _ROWS + 1):
                while time.perf_counter() - begin < seconds * row / _ROWS:
                    load.ask()
                    load.ask()
                    kinds = kinds or choose.sample([*_TROUBLES], len(_TROUBLES))
                    load.troubles[kind := kinds.pop()] += 1
                    _TROUBLES[kind](load)
                    load.look(16)
                now = own_use()
                first = now if row == 1 else first
                _row(report, load, time.perf_counter() - begin, now, first)
            load.look(0)
            _row(report, load, time.perf_counter() - begin, now, first)
            busy = {device: taken / (time.perf_counter() - begin) for device, taken in server.busy.items()}
    report.row(**{f"busy_{device}": share for device, share in busy.items()})
    report.row(**{kind: load.troubles[kind] for kind in _TROUBLES})
    ended = load.ended
    report.claim(f"{name}: kinds of trouble", len(load.troubles), "", at_least=None if args.quick else len(_TROUBLES))
    report.claim(f"{name}: requests that are not accounted for", load.asked - ended.total(), "", at_most=0)
    report.claim(f"{name}: requests that failed, beyond those that were hit", max(0, ended["failed"] - load.hit), "", at_most=0)
    report.claim(f"{name}: requests that failed for another reason", ended["lost"], "", at_most=0)
    report.claim(f"{name}: requests with wrong outputs", ended["wrong"], "", at_most=0)
    report.claim(f"{name}: requests that ended twice", server.repeated, "", at_most=0)
    report.claim(f"{name}: memory over that after a tenth", (now.bytes - first.bytes) / 1e6, "MB", at_most=_GROWTH.bytes / 1e6)
    report.claim(f"{name}: threads over those after a tenth", now.threads - first.threads, "", at_most=_GROWTH.threads)


def _row(report: Report, load: _Load, seconds: float, now: Use, first: Use) -> None:
    grown, ended = (now.bytes - first.bytes) / 1e6, load.ended
    kinds = {kind: ended[kind] for kind in ("done", "cancelled", "late", "set", "failed", "lost", "wrong")}
    report.row(seconds=seconds, requests=load.asked, **kinds, hit=load.hit, grown_mb=grown, threads=now.threads - first.threads)
    progress(f"{load.asked} requests, {load.troubles.total()} with trouble: {grown:.0f} MB over the first tenth")


def _outcome(answer: Answer, outputs: Values) -> str:
    if answer.cancelled():
        return "cancelled"
    error = answer.exception(60)  # not result(), whose error would keep this frame, and with it the answer, alive
    if error is None:
        found = answer.result()
        right = all(np.allclose(found[name], value, rtol=1e-4, atol=1e-6) for name, value in outputs.items())
        return "done" if right else "wrong"
    said = str(error)
    if isinstance(error, DeadlineError):
        return "late"
    if isinstance(error, TimeoutError) and said == _SAID:
        return "set"
    return "failed" if _SAID in said or "This request could not be served" in said else "lost"


if __name__ == "__main__":
    main("serving", run, models=MODELS, judge=True, seconds=_SECONDS)
