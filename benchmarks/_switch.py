"""A switch of Ethernet frames in user space, for kernels without netem, in a separate process that ``_network.py`` starts.

Each ordered pair of ports is a link: its frames leave one after the other at its rate, and arrive after its delay. Frames that
would have to wait for longer than ``QUEUE_S`` are dropped, as by a switch whose queue is full.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import json
import mmap
import os
import select
import signal
import sys
from collections.abc import Sequence
from time import monotonic

MAC = bytes.fromhex("0200000000")
"""Prefix of the address of each port; its number, from 1, is the last byte."""
QUEUE_S = 0.1
_LONGEST = 2048
_AT_ONCE = 32  # frames that are read from a port before others have their turn
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29


def forward(taps: Sequence[int], rate: float, delay: float, cut: Sequence[int]) -> None:
    """Forward frames for ever.

    Args:
        taps: TAP devices, not blocking.
        rate: of each link, bits per second.
        delay: of each link, seconds.
        cut: for each ordered pair of ports whether its frames are dropped, ``[source * ports + target]``.
    """
    ports = len(taps)
    numbers = {tap: number for number, tap in enumerate(taps)}
    free = [0.0] * ports**2  # when each link has sent its queued frames
    due: list[tuple[float, int, int, bytes]] = []
    count, lost = itertools.count(), contextlib.suppress(OSError)  # errors of a node that does not keep up, or is gone
    while True:
        now = monotonic()
        while due and due[0][0] <= now:
            _, _, tap, frame = heapq.heappop(due)
            with lost:
                os.write(tap, frame)
        ready, _, _ = select.select(taps, (), (), max(0.0, due[0][0] - monotonic()) if due else None)
        now = monotonic()
        for tap in ready:
            source = numbers[tap]
            for _ in range(_AT_ONCE):
                try:
                    frame = os.read(tap, _LONGEST)
                except BlockingIOError:
                    break
                if frame[:5] == MAC:
                    targets: Sequence[int] = (frame[5] - 1,)
                else:
                    targets = range(ports) if frame[:6] == b"\xff" * 6 else ()
                for target in targets:
                    link = source * ports + target
                    if target == source or cut[link] or free[link] > now + QUEUE_S:
                        continue
                    free[link] = max(now, free[link]) + len(frame) * 8 / rate
                    heapq.heappush(due, (free[link] + delay, next(count), taps[target], frame))


def _main() -> None:
    asked = json.loads(sys.argv[1])
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    os.nice(-20)  # it stands for wires, which wait for no CPU
    with open(asked["cuts"], "r+b") as file:  # noqa: PTH123
        forward(asked["taps"], asked["rate"], asked["delay"], mmap.mmap(file.fileno(), 0))


if __name__ == "__main__":
    _main()
