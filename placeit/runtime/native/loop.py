"""The compiled loop of a lane: it runs what the rules start on a device or an emulated link, and tells them when it has ended.

A lane is a thread that runs one thing at a time: a segment through its native entry (a C function and an argument), or a
transfer, which takes until an absolute deadline. All lanes of a run share one state, under one mutex. Whoever reports an end
carries out what the rules answer: it puts what starts into the boxes of lanes, and wakes other lanes before it goes on itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.runtime.native.libc import call, lock, monotonic, post, ring, sleep_until, unlock, wait
from placeit.simulator.machine import Machine, abort, begin, op_finished, transfer_finished

NOTHING = -1
ARRIVED, BEGUN, STOPPED, DROPPED, OVER, LEFT, WAITING, FAILED, FAILED_LANE, BELL = range(10)
"""Control: lanes that are there; whether requests have begun; whether nothing more may start, as anybody may say; whether the
rules know that; whether the run is over; requests in flight, and one more while others may be admitted; requests that follow
them; the node that failed first, and on which lane; the descriptor of what to ring when a request has ended, or NOTHING."""
CONTROLS = 10
_LOOK_S = 0.05


class Lanes(NamedTuple):
    """What the lanes of a run share; ``R`` slots of ``V + E`` nodes, ``L`` lanes."""

    entry: NDArray[np.int64]  # [R * (V + E)] C function of a node; 0 if it ends as soon as it starts
    argument: NDArray[np.int64]  # [R * (V + E)]
    lane: NDArray[np.int32]  # [R * (V + E)] of a node
    seconds: NDArray[np.float64]  # [V + E] of a transfer on its lane
    slowdown: NDArray[np.float64]  # [L] of what runs on a lane; 0 if it is a link
    box: NDArray[np.int64]  # [L] node to run next, or NOTHING
    asked: NDArray[np.float64]  # [L] when it was put there
    free: NDArray[np.float64]  # [L] until when a link is taken
    wake: NDArray[np.bool_]  # [L + 1, L + 1] lanes that a lane has to wake; the last one is the thread that admits requests
    first: NDArray[np.bool_]  # [R] requests to begin when all lanes are there
    done: NDArray[np.bool_]  # [R] requests that have ended well, and of which who admits them does not know yet
    todo: NDArray[np.int64]  # ring of what to carry out
    control: NDArray[np.int64]  # [CONTROLS]
    time: NDArray[np.float64]  # [2] begin and end of the run, seconds
    timespec: NDArray[np.int64]  # [L + 1, 3] to work in
    sync: NDArray[np.int64]  # [1 + L] addresses of the mutex, and of the semaphore of each lane
    libc: NDArray[np.int64]  # addresses


@jit
def run_lane(machine: Machine, lanes: Lanes, k: int) -> None:
    """Work on lane ``k`` until the run is over; the last lane to come begins it."""
    libc, control, timespec = lanes.libc, lanes.control, lanes.timespec[k]
    nodes = len(machine.place) + len(machine.edge)
    node = machine.state.node
    mutex = lanes.sync[0]
    lock(libc, mutex)
    control[ARRIVED] += 1
    if control[ARRIVED] == len(lanes.box) and control[STOPPED] == 0:
        control[BEGUN] = 1
        lanes.time[0] = monotonic(libc, timespec)
        for slot in range(len(lanes.first)):
            if lanes.first[slot]:
                _carry_out(machine, lanes, k, begin(machine, slot), lanes.time[0])
    while True:
        now_over = control[OVER] != 0 or (control[STOPPED] != 0 and control[BEGUN] == 0)
        n = lanes.box[k]
        lanes.box[k] = NOTHING
        unlock(libc, mutex)
        _wake(lanes, k, now_over)
        if n == NOTHING:
            if now_over:
                return
            wait(libc, lanes.sync[1 + k])
            lock(libc, mutex)
            continue
        status = 0
        if lanes.slowdown[k] == 0:
            start = max(lanes.asked[k], lanes.free[k])
            finish = start + lanes.seconds[n % nodes]
            lanes.free[k] = finish
            _sleep_until(lanes, timespec, finish)
        else:
            start = monotonic(libc, timespec)
            status = call(lanes.entry[n], lanes.argument[n])
            finish = monotonic(libc, timespec)
            if lanes.slowdown[k] > 1:
                _sleep_until(lanes, timespec, start + (finish - start) * lanes.slowdown[k])
                finish = monotonic(libc, timespec)
        lock(libc, mutex)
        node[n].start, node[n].finish = start, finish
        if status != 0 and control[FAILED] < 0:
            control[FAILED], control[FAILED_LANE], control[STOPPED] = n, k, 1
        if control[STOPPED] != 0 and control[DROPPED] == 0:
            control[DROPPED], control[WAITING] = 1, 0
            for slot in range(len(machine.state.request)):
                _carry_out(machine, lanes, k, abort(machine, slot), finish)
        if n % nodes < len(machine.place):
            count = op_finished(machine, n)
        else:
            count = transfer_finished(machine, n)
        _carry_out(machine, lanes, k, count, finish)


@jit
def admit(machine: Machine, lanes: Lanes, slot: int) -> None:
    """Begin a request while others may be in flight, unless the run has been stopped; by the thread that admits them."""
    k = len(lanes.box)
    lock(lanes.libc, lanes.sync[0])
    if lanes.control[STOPPED] == 0:
        lanes.control[LEFT] += 1
        if lanes.control[BEGUN] == 0:
            lanes.first[slot] = True
        else:
            _carry_out(machine, lanes, k, begin(machine, slot), monotonic(lanes.libc, lanes.timespec[k]))
    unlock(lanes.libc, lanes.sync[0])
    _wake(lanes, k, False)


@jit
def admit_no_more(lanes: Lanes) -> None:
    """Have the run be over when nothing is in flight any more; by the thread that admits requests."""
    k = len(lanes.box)
    lock(lanes.libc, lanes.sync[0])
    over = _one_less(lanes, k)
    unlock(lanes.libc, lanes.sync[0])
    _wake(lanes, k, over)


@jit
def _one_less(lanes: Lanes, k: int) -> bool:
    """Take note that a request has ended, or that no other will come; lane ``k`` holds the mutex."""
    lanes.control[LEFT] -= 1
    if lanes.control[LEFT] == 0:
        lanes.control[OVER] = 1
        lanes.time[1] = monotonic(lanes.libc, lanes.timespec[k])
    return bool(lanes.control[OVER] != 0)


@jit
def _wake(lanes: Lanes, k: int, everybody: bool) -> None:
    """Wake those for whom lane ``k`` has done something, or all lanes; who is woken must not find the mutex taken."""
    for other in range(len(lanes.box)):
        if everybody or lanes.wake[k, other]:
            lanes.wake[k, other] = False
            if other != k:
                post(lanes.libc, lanes.sync[1 + other])
    if lanes.wake[k, -1]:
        lanes.wake[k, -1] = False
        ring(lanes.libc, lanes.control[BELL])


@jit
def _sleep_until(lanes: Lanes, timespec: NDArray[np.int64], deadline: float) -> None:
    """Sleep until a deadline, or until the run is stopped, which is looked at now and then."""
    now = monotonic(lanes.libc, timespec)
    while now < deadline and lanes.control[STOPPED] == 0:
        sleep_until(lanes.libc, timespec, min(deadline, now + _LOOK_S))
        now = monotonic(lanes.libc, timespec)


@jit
def _carry_out(machine: Machine, lanes: Lanes, k: int, count: int, now: float) -> None:
    """Do what the rules have just written, and what they answer to what ends at once; lane ``k`` holds the mutex."""
    out, todo, control, node = machine.state.out, lanes.todo, lanes.control, machine.state.node
    nodes = len(machine.place) + len(machine.edge)
    first, last = 0, 0
    while True:
        for i in range(count):
            todo[last % len(todo)] = out[i]
            last += 1
        count = 0
        if first == last:
            return
        n = todo[first % len(todo)]
        first += 1
        if n < 0:
            if control[WAITING] > 0:
                control[WAITING] -= 1
                count = begin(machine, -1 - n)
            else:
                if control[BELL] >= 0:
                    lanes.done[-1 - n] = control[STOPPED] == 0
                    lanes.wake[k, -1] = True
                _one_less(lanes, k)
        elif lanes.entry[n] == 0:
            node[n].start = node[n].finish = now
            count = op_finished(machine, n) if n % nodes < len(machine.place) else transfer_finished(machine, n)
        else:
            lane = lanes.lane[n]
            lanes.box[lane], lanes.asked[lane] = n, now
            lanes.wake[k, lane] = True
