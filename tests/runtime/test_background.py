"""Work in the background of a server: at which priority, how much of it, and what it leaves behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from placeit.core.errors import ExecutionError
from placeit.core.threads import run_in_thread
from placeit.runtime.background import Background, in_background

T = TypeVar("T")

USUAL = os.sched_getscheduler(os.getpid())


@pytest.fixture(autouse=True)
def _background_that_runs(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Have another policy that threads inherit stand for ``SCHED_IDLE``: beside other processes, nothing runs under that."""
    if request.function is not test_work_runs_when_nothing_else_does:
        monkeypatch.setattr(os, "SCHED_IDLE", os.SCHED_OTHER if os.SCHED_BATCH == USUAL else os.SCHED_BATCH)


@pytest.fixture
def background() -> Iterator[Background]:
    with contextlib.closing(Background(0.2)) as made:
        yield made


def done(background: Background, what: Callable[[], T], *, starts_threads: bool = False) -> T:
    job = background.begin(what, starts_threads=starts_threads)
    while not job.ended.wait(0.1):
        background.check()
    return job.result()


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def priority() -> tuple[int, bool]:
    return os.sched_getscheduler(0), in_background()


def test_work_runs_when_nothing_else_does(background: Background) -> None:
    assert done(background, priority) == (os.SCHED_IDLE, True)
    assert priority() == (USUAL, False)


def test_what_a_piece_of_work_raises_belongs_to_who_waits(background: Background) -> None:
    def refuse() -> None:
        raise ExecutionError("no")

    with pytest.raises(ExecutionError, match="no"):
        done(background, refuse)
    assert done(background, lambda: 3) == 3


@pytest.mark.parametrize("elsewhere", [run_in_thread, lambda job: done(Background(0.2), job)])
def test_what_is_raised_elsewhere_keeps_no_frame_that_it_passed(
    elsewhere: Callable[[Callable[[], None]], object],
) -> None:
    class Kept:
        pass

    def refuse() -> None:
        raise ExecutionError("no")

    def frame() -> weakref.ref[Kept]:
        kept = Kept()
        with pytest.raises(ExecutionError, match="no"):
            elsewhere(refuse)
        return weakref.ref(kept)

    gc.disable()
    try:
        assert frame()() is None
    finally:
        gc.enable()


def test_after_each_piece_it_rests_until_its_share_is_kept(background: Background) -> None:
    begin = time.monotonic()
    for _ in range(3):
        while not background.rested:
            time.sleep(0.001)
        assert background.seconds <= 0.2 * (time.monotonic() - begin)
        done(background, lambda: burn(0.002))
    assert background.seconds >= 0.006


@pytest.mark.parametrize("privileged", [True, False])
def test_threads_that_a_piece_starts_do_not_keep_its_priority(privileged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only privileged processes may raise it; others start them at the ordinary one."""
    change, go_on, started = os.sched_setscheduler, threading.Event(), list[threading.Thread]()

    def refuse(thread: int, policy: int, param: os.sched_param) -> None:
        if policy != os.SCHED_IDLE:
            raise PermissionError
        change(thread, policy, param)

    def start() -> int:
        started.append(threading.Thread(target=lambda: [burn(0.002), ready.set(), go_on.wait(240)]))
        ready = threading.Event()
        started[-1].start()
        assert ready.wait(240)
        return os.sched_getscheduler(0)

    if not privileged:
        monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with contextlib.closing(Background(1.0)) as background:
        try:
            policy = done(background, start, starts_threads=True)
            if privileged and policy != os.SCHED_IDLE:
                pytest.skip("needs a process that may raise the priority of its threads")
            assert policy == (os.SCHED_IDLE if privileged else USUAL)
            assert os.sched_getscheduler(started[0].native_id or 0) == USUAL
            assert background.seconds >= 0.002  # of the thread
            assert done(background, priority) == (os.SCHED_IDLE, True)
        finally:
            go_on.set()
            started[0].join()


def test_a_thread_that_one_of_them_starts_at_the_last_moment_does_not_keep_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    change, go_on, wanted, there = os.sched_setscheduler, threading.Event(), threading.Event(), threading.Event()
    second = threading.Thread(target=lambda: [there.set(), go_on.wait(240)])
    first = threading.Thread(target=lambda: [wanted.wait(240), second.start(), go_on.wait(240)])

    def late(thread: int, policy: int, param: os.sched_param) -> None:
        if policy != os.SCHED_IDLE and thread == first.native_id:
            wanted.set()
            assert there.wait(240)
        change(thread, policy, param)

    def start() -> int:
        first.start()
        return os.sched_getscheduler(0)

    monkeypatch.setattr(os, "sched_setscheduler", late)
    with contextlib.closing(Background(1.0)) as background:
        try:
            if done(background, start, starts_threads=True) != os.SCHED_IDLE:
                pytest.skip("needs a process that may raise the priority of its threads")
            assert there.is_set()
            assert [os.sched_getscheduler(thread.native_id or 0) for thread in (first, second)] == [USUAL] * 2
        finally:
            for event in (wanted, there, go_on):
                event.set()
            first.join()
            second.join()
