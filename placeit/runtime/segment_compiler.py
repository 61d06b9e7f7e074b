"""Compilation of segments for open devices, and the cache of compiled programs for later plans."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

from placeit.core import clock
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, ExecutionError, HangsError
from placeit.core.memory import Use
from placeit.core.threads import CHECK_S, Gate, Job, exit_without_libraries, run_in_thread
from placeit.devices.host import memory_bytes
from placeit.planning.segments import Plan, Segment
from placeit.runtime.background import in_background
from placeit.runtime.compiling import Compiling
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.accelerator import StreamProgram
from placeit.runtime.devices.base import CompilesSlowly, KeepsPrograms, KeptOnDisk, OneAtATime, Program, SegmentSource
from placeit.runtime.programs import Programs
from placeit.runtime.refused import describe_ops, naming_ops
from placeit.runtime.segment_book import SegmentBook

__all__ = ["SegmentCompiler"]

_KEPT_MODELS, _KEPT_BYTES, _KEPT_SHARE = 1, 2.5e8, 0.5
"""Bounds on the growth of the process while programs that no executor uses are kept: this number times the model's weights plus
this number of bytes, but at most this share of the memory that it may take."""
_KEPT_PROGRAMS, _KEPT_THREADS = 512, 256
_MAX_TIME_SHARE = 0.95  # largest progress of a batch that is reported from elapsed time, before all of it is compiled

_Key: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...]]
"""Key of a program: the device's key, the cores of the device if they matter, and the groups of the segment."""


class SegmentCompiler:
    """Compiles the segments of one model for the devices of one pool. A segment is compiled once for all placements.

    Args:
        book: inputs and outputs of segments.
        pool: the devices.
        compiling: counts programs, and reports what is being compiled.
    """

    def __init__(self, book: SegmentBook, pool: DevicePool, compiling: Compiling) -> None:
        self.book, self.pool, self.compiling = book, pool, compiling
        room = _KEPT_MODELS * float(book.grouping.groups.bytes_once.sum()) + _KEPT_BYTES
        self._programs: Programs[_Key, Program | StreamProgram] = Programs(
            Use(min(room, _KEPT_SHARE * memory_bytes()), _KEPT_THREADS),
            max_programs=_KEPT_PROGRAMS,
            max_weights=room,
            weights=self._weights,
        )
        self._first_of: dict[str, tuple[int, ...]] = {}  # by function: groups of the first segment that computes it
        self._equal: dict[tuple[int, ...], tuple[int, ...] | None] = {}  # by groups: groups of the first equal segment

    def clear(self) -> None:
        """Release the memory of programs that no executor uses."""
        self._programs.clear()

    def source(self, segment: Segment) -> SegmentSource:
        """Return a segment in the form that its device compiles."""
        return self.book.source(segment, self.pool.cluster.names[segment.device])

    def expected_s(self, plans: Iterable[Plan]) -> float:
        """Estimate the seconds to compile or load the programs of plans that are not in memory.

        Programs of slow compilers are compiled at the same time, one for each core.
        """
        missing = {key: s for plan in plans for s in plan.programs if (key := self._key(s)) not in self._programs}
        slow = [self._expected_s(segment) for segment in missing.values() if self._is_slow(segment)]
        others = sum(self._expected_s(segment) for segment in missing.values() if not self._is_slow(segment))
        return others + max(sum(slow) / len(os.sched_getaffinity(0)), *slow, 0.0)

    def _is_slow(self, segment: Segment) -> bool:
        return self.pool.streams is None and isinstance(self.pool.devices[segment.device], CompilesSlowly)

    def expected_whole_s(self, device: Device) -> float:
        """Estimate the seconds to compile the whole model for a device, inside or outside the cluster."""
        return self.compiling.expected_s(Compiling.kind(device), len(self.book.grouping.graph))

    def _expected_s(self, segment: Segment) -> float:
        """Estimate the seconds to compile a segment, or to load it if the device has it on disk."""
        on_disk = False
        if self.pool.streams is None:
            device = self.pool.devices[segment.device]
            on_disk = isinstance(device, KeepsPrograms) and device.keeps(self.source(segment))
        return self.compiling.expected_s(self._kind(segment), len(self.book.ops(segment)), on_disk=on_disk)

    def _kind(self, segment: Segment) -> str:
        return Compiling.kind(self.pool.cluster.devices[segment.device])

    def make_room(self) -> None:
        """Release programs that no executor uses until there is room for a program of the whole model."""
        self._programs.trim(float(self.book.grouping.groups.bytes_once.sum()))

    def compile(self, segments: Sequence[Segment], *, alone: bool = False) -> list[Program | StreamProgram]:
        """Compile segments for their devices, or reuse programs that were compiled before. Raises DeviceError.

        Args:
            segments: the segments.
            alone: whether no other program runs at the same time. If all segments are on one device, programs of equal devices
                are then used, too.
        """
        batch = _Batch()
        work = functools.partial(self._compile_all, segments, batch, alone=alone and len({s.device for s in segments}) == 1)
        try:
            return work() if in_background() else run_in_thread(work, functools.partial(self._report_progress, batch))
        except BaseException:
            batch.cancelled.open()
            raise

    def _report_progress(self, batch: _Batch) -> None:
        if self.compiling.progress is not None and batch.total:
            self.compiling.progress(*batch.progress(clock.now()))

    def _compile_all(self, segments: Sequence[Segment], batch: _Batch, *, alone: bool) -> list[Program | StreamProgram]:
        for segment in segments:
            self._find_equal(segment)
        keys = [self._key_of_any(segment) if alone else self._key(segment) for segment in segments]

        def make(places: Sequence[int]) -> list[Program | StreamProgram]:
            missing = [segments[place] for place in places]
            batch.devices = ", ".join(dict.fromkeys(self.pool.cluster.names[segment.device] for segment in missing))
            batch.expected = sum(map(self._expected_s, missing))
            batch.begin, batch.total = clock.now(), len(missing)
            compile_one = functools.partial(self._compile, batch)
            if in_background():
                made = [*map(compile_one, missing)]
            else:
                with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "placeit compile") as pool:
                    made = list(pool.map(compile_one, missing))
            self._tally(missing, made, clock.now() - batch.begin)
            return [program for program, _ in made]

        for key, segment in dict(zip(keys, segments, strict=True)).items():
            if key in self._programs:
                self.compiling.reuse(self._kind(segment))
        return self._programs.get(keys, make)

    def _tally(
        self, segments: Sequence[Segment], made: Sequence[tuple[Program | StreamProgram, float]], seconds: float
    ) -> None:
        """Record programs that were compiled within ``seconds``, several at a time; ``made`` has the seconds of each."""
        parallelism = sum(taken for _, taken in made) / seconds if seconds > 0 else 1.0
        for segment, (program, taken) in zip(segments, made, strict=True):
            from_disk = isinstance(program, KeptOnDisk) and program.from_disk
            share = taken / parallelism if parallelism > 0 else 0.0
            alone = taken if self._is_slow(segment) else share
            self.compiling.record(self._kind(segment), share, len(self.book.ops(segment)), from_disk=from_disk, alone=alone)

    def _compile(self, batch: _Batch, segment: Segment) -> tuple[Program | StreamProgram, float]:
        if batch.cancelled.is_open:
            raise ExecutionError("Compiling this segment was given up.")
        begin, whole = clock.now(), len(segment.groups) == len(self.book.grouping.groups)
        with self.pool.on(segment.device), naming_ops(self.book.op_names(segment), whole=whole):
            self._refuse_hung(segment)
            job = Job(functools.partial(self._compiler(segment.device), self.source(segment)))
            if in_background():  # which has to use this thread, as its CPU time counts
                job()
            else:
                run_in_thread(job, self._watch(segment, job.ended))
            program = job.result()
        batch.done += 1
        return program, clock.now() - begin

    def _watch(self, segment: Segment, ended: Gate) -> Callable[[], None]:
        """Return a function to call every ``CHECK_S`` seconds while a segment is compiled. It raises HangsError on a time-out.

        It counts its calls instead of reading a clock, as time may pass while this process is stopped.
        """
        device, calls, names = self.pool.cluster.devices[segment.device], itertools.count(1), self.book.op_names(segment)

        def watch() -> None:
            seconds = next(calls) * CHECK_S
            if seconds > self.compiling.timeout_s(device, self._expected_s(segment)):
                what, of = f"{device.name} hangs: it has not compiled a segment within {seconds:.0f} s.", describe_ops(names)
                advice = f"Update its driver, or choose devices without it. The segment has {of}."
                self.compiling.hung[device.address] = ended, f"{what} {advice}"
                exit_without_libraries()
                self._refuse_hung(segment)

        return watch

    def _refuse_hung(self, segment: Segment) -> None:
        """Raise HangsError if the compiler of a segment's device hangs: it may hold locks."""
        hung = self.compiling.hung.get(self.pool.cluster.devices[segment.device].address)
        if hung is not None and not hung[0].is_open:
            raise HangsError(hung[1])

    def _compiler(self, device: int) -> Callable[[SegmentSource], Program | StreamProgram]:
        """Return the function that compiles for a device; slow compilers stop at the deadline."""
        if self.pool.streams is not None:
            return self.pool.streams.compile
        opened = self.pool.devices[device]
        if not isinstance(opened, CompilesSlowly):
            return opened.compile
        return functools.partial(opened.compile_within, seconds=self.compiling.deadline - clock.now())

    def _key(self, segment: Segment) -> _Key:
        """Return the key of a segment's program.

        If a program runs one request at a time, equal devices get separate programs, as they may run the same segment at the
        same time. Programs of single groups, of which profiling compiles many, are shared: no two devices profile the same
        group at the same time. But they may profile equal groups at the same time, so these get separate programs, too.
        """
        if self.pool.streams is not None:
            return "", (), segment.groups
        device, cores = self.pool.devices[segment.device], self.pool.cluster.devices[segment.device].cores
        single = len(segment.groups) == 1 < len(self.book.grouping.groups) and not self.book.model.placed
        first = self._equal.get(segment.groups)
        own = isinstance(device, OneAtATime) and device.one_at_a_time and not (single and first is None)
        groups = tuple(range(len(segment.groups))) if self.book.model.uniform else first or segment.groups
        return self.pool.program_key(segment.device), cores if own else (), groups

    def _key_of_any(self, segment: Segment) -> _Key:
        """Return the key of a program that exists for the segment on an equal device; else the segment's own key."""
        own = self._key(segment)
        keys = (own, *(self._key(replace(segment, device=d)) for d in range(len(self.pool.cluster))))
        return next((key for key in keys if key[::2] == own[::2] and key in self._programs), own)

    def _find_equal(self, segment: Segment) -> None:
        """Record the first segment that computes the same function as this one: one program then serves both."""
        if segment.groups in self._equal:
            return
        function = None
        with contextlib.suppress(DeviceError):  # it cannot be cut out; compiling it will raise this
            function = self.book.model.function(*self.book.parts(segment))
        self._equal[segment.groups] = None if function is None else self._first_of.setdefault(function, segment.groups)

    def _weights(self, key: _Key) -> float:
        return float(self.book.grouping.groups.param_bytes[list(key[2])].sum())


class _Batch:
    """Segments that are compiled while a caller waits.

    Attributes:
        cancelled: opened when the caller does not wait any longer.
        devices: names of the segments' devices.
        total, done: number of segments, and number of compiled segments.
        begin: time at which compiling began, by :func:`placeit.core.clock.now`.
        expected: estimate of the seconds that all segments take together.
    """

    def __init__(self) -> None:
        self.cancelled, self.devices = Gate(), ""
        self.total = self.done = 0
        self.begin = self.expected = 0.0

    def progress(self, now: float) -> tuple[str, float]:
        """Return a text about the work for the progress display, and the share of it that is done."""
        what = f"compiling {min(self.done + 1, self.total)} of {self.total} segments for {self.devices}"
        by_time = (now - self.begin) / self.expected if self.expected > 0 else 0.0
        return what, max(self.done / self.total, min(by_time, _MAX_TIME_SHARE))
