"""A model on open devices, for which plans are compiled and executors are made."""

from __future__ import annotations

import contextlib
import os
import threading
from types import TracebackType
from typing import Self, Unpack, cast
from weakref import WeakSet

from placeit.backends.base import Model
from placeit.core.cluster import Cluster
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Plan
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.calls import check_process, check_requests
from placeit.runtime.compiling import Compiling
from placeit.runtime.device_pool import DevicePool, PoolOptions
from placeit.runtime.devices.accelerator import StreamProgram
from placeit.runtime.devices.base import DividedIntoStreams, Program, RuntimeDevice
from placeit.runtime.devices.state import Pages
from placeit.runtime.executor import Executor
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.segment_book import SegmentBook
from placeit.runtime.segment_compiler import SegmentCompiler
from placeit.runtime.slots import States

__all__ = ["SERVING_PRIORITY", "Runtime"]

SERVING_PRIORITY = -1  # lower numbers go first, as in CUDA: ahead of profiling and races at the same time, which have 0


class Runtime:
    """One model on the open devices of one cluster. Use it as a context manager, or call :meth:`close`.

    Each segment is compiled once for all placements, so that measuring a new placement mostly reuses compiled segments.

    Args:
        model: the model.
        grouping: its ops in groups.
        cluster: real or emulated devices; links of origin ``measured`` are the hardware's own and are not throttled. Links are
            opened by the kinds of their ends (:class:`placeit.runtime.devices.kinds.DeviceKind`).
        compiling: counts programs, and reports what is being compiled; None to make one.
        options: how devices are opened (:class:`placeit.runtime.device_pool.DevicePool`).

    Attributes:
        book: names, shapes and buffers of the model's segments.
        pool: the open devices and links.
        compiler: the compiled segments.
        reached: the model's state before its sample requests, once an executor has reached it; see
            :meth:`placeit.runtime.plan_executor.PlanExecutor.set_requests`.

    Raises:
        DeviceError: a device exists in simulation only, or is of a kind that this version cannot run.
        GraphError: the grouping separates ops that have to stay together in this model.
    """

    def __init__(
        self,
        model: Model,
        grouping: Grouping,
        cluster: Cluster,
        *,
        compiling: Compiling | None = None,
        **options: Unpack[PoolOptions],
    ) -> None:
        self.book = SegmentBook(model, grouping)
        self.pool = DevicePool(cluster, **options)
        self.compiler = SegmentCompiler(self.book, self.pool, Compiling() if compiling is None else compiling)
        if all(isinstance(device, Pages) and device.pages for device in self.pool.devices):
            self.book.paging = model.paging
        self.reached: dict[int, States | None] = {}
        self._process = os.getpid()
        self._opening = threading.Lock()
        self._executors: WeakSet[PlanExecutor] = WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End runs, stop every thread, even if one raises, and release the memory of programs that no executor uses."""
        self.pool.refuse()
        with self._opening:  # executors opened later cannot run
            executors = list(self._executors)
        with contextlib.ExitStack() as stack:
            stack.callback(self.compiler.clear)
            stack.callback(self.reached.clear)
            stack.callback(self.pool.close)
            for executor in executors:
                stack.callback(executor.give_up, self.pool.why_closed())

    @property
    def model(self) -> Model:
        """The model."""
        return self.book.model

    @property
    def grouping(self) -> Grouping:
        """The model's ops in groups."""
        return self.book.grouping

    @property
    def cluster(self) -> Cluster:
        """The cluster that devices were opened for."""
        return self.pool.cluster

    @property
    def precision(self) -> str:
        """The inference precision of every device."""
        return self.pool.precision

    @property
    def devices(self) -> tuple[RuntimeDevice, ...]:
        """The open devices, in the cluster's order; empty if streams drive them."""
        return self.pool.devices

    def executor(self, plan: Plan, *, in_flight: int = 1, priority: int = 0, alone: bool = False) -> PlanExecutor:
        """Make an executor of a plan, of the type for these devices.

        Args:
            plan: the plan to run.
            in_flight: maximum number of requests in flight at once.
            priority: among executors whose work waits for a device, the one with the lowest number goes first.
            alone: whether no other executor runs at the same time. A plan on one device may then use programs of equal devices.

        Raises:
            DeviceError: a segment cannot be compiled for its device, or there is no room for its weights or buffers.
            ExecutionError: this process was forked from the one that opened the devices.
            UsageError: ``in_flight`` is below 1.
        """
        check_process(self._process)
        check_requests(in_flight)
        programs = self.compiler.compile(plan.programs, alone=alone)
        executor: PlanExecutor
        if self.pool.streams is not None:
            work = PlanTasks.of(self.book, plan, cast("list[StreamProgram]", programs))
            executor = StreamExecutor(work, self.pool.streams.accelerator, in_flight=in_flight, priority=priority)
        else:
            made = cast("list[Program]", programs)
            executor = Executor(self.book, self.pool, plan, made, in_flight=in_flight, priority=priority)
        with self._opening:
            self._executors.add(executor)
        return executor

    def best_in_flight(self, plan: Plan) -> int | None:
        """Return the number of requests in flight that the runtime recommends for a plan in throughput mode; else None.

        Raises:
            DeviceError: the plan cannot be compiled.
        """
        if self.pool.streams is not None or len(plan.programs) != 1:
            return None
        device = self.pool.devices[plan.segments[0].device]
        if not isinstance(device, DividedIntoStreams):
            return None
        return device.streams(cast("Program", self.compiler.compile(plan.programs)[0]))
