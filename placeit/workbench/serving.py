"""Serve prepared placements, and measure servers."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import abc
from dataclasses import replace
from time import perf_counter
from typing import Literal, TypeAlias

import numpy as np

from placeit.backends.base import Arrays
from placeit.core.errors import ExecutionError, UsageError
from placeit.core.placement import Placement
from placeit.devices.meters import Sampler
from placeit.measuring.check import OutputDifference, other_inputs
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.batching import Joining, why_fixed
from placeit.serving.load_run import RateReport, keep_busy, offer
from placeit.serving.padding import Padding
from placeit.serving.refinement import Limits
from placeit.serving.replica import Replacement
from placeit.serving.server import Server
from placeit.serving.stepping import Steps
from placeit.workbench.adapting import Adapter
from placeit.workbench.opened import Workbench
from placeit.workbench.options import Traffic
from placeit.workbench.prepared import Prepared
from placeit.workbench.proposals import Proposals
from placeit.workbench.recovery import Recovery
from placeit.workbench.refining import Refiner
from placeit.workbench.running import given_to

__all__ = ["Watch", "adapting", "executors", "joining", "measure", "move", "refining"]

Watch: TypeAlias = abc.Callable[[Server], contextlib.AbstractContextManager[object]]
"""Returns a context manager, given a server, in whose context requests arrive at the server."""


def executors(placements: abc.Sequence[Prepared], in_flight: int | None = None, priority: int = 0) -> list[PlanExecutor]:
    """Compile the executors of a placement and its replicas; see :meth:`placeit.workbench.prepared.Prepared.to_serve`."""
    found: list[PlanExecutor] = []
    with contextlib.ExitStack() as stack:
        for one in placements:
            found.append(one.to_serve(in_flight, priority))
            stack.callback(found[-1].close)
        stack.pop_all()
    return found


def adapting(
    session: Workbench,
    placements: abc.Sequence[Prepared],
    *,
    in_flight: int | None,
    queue: int,
    state_memory: float | None,
    priority: int,
) -> Server:
    """Start a server that places the model again when devices are lost, and moves when devices come back or become slow.

    Raises:
        UsageError: costs are not known.
        DeviceError: a device exists in simulation only, or has no room.
    """
    recovery = Recovery(session.runtime, session.costs, in_flight)
    executors_ = executors(placements, in_flight, priority)
    server = Server(
        executors_, queue=queue, replace=recovery, state_memory=state_memory, steps=Steps.of(session.model, session.tolerance)
    )
    server.attend(Adapter(server, recovery))
    return server


def move(session: Workbench, server: Server, placement: Placement, *, in_flight: int | None, priority: int = 0) -> None:
    """Move a server of a session to another placement, without losing a request.

    The new segments are compiled beside the requests. New requests then run there; those in flight end where they began.

    Args:
        session: has started the server.
        server: does not refine its placement.
        placement: of the session's model, on its devices.
        in_flight: maximum number of requests in flight on each replica; None for as many as its highest throughput needs.
        priority: of its segments; 0 or less.

    Raises:
        PlacementError: it does not fit the model, its groups, the devices or their memory.
        UsageError: it cannot be planned (:meth:`placeit.workbench.Workbench.plan_of`), or the server refines its placement.
        DeviceError: a device has no room, or is lost.
        ExecutionError: the server is closed, or was changed in another way.
    """
    if server.refinement is not None:
        raise UsageError("A server that refines its placement cannot be moved: start it without refinement.")
    begin = perf_counter()
    placements = [Prepared.of(session, one) for one in placement.every]
    leaving, new = server.executors, executors(placements, in_flight, priority)
    by = Replacement("Another placement was applied.", tuple(placement.used), 0.0, 0.0, perf_counter() - begin, asked=True)
    if not server.exchange(leaving, new, by):
        for executor in new:
            executor.close()
        raise ExecutionError("The server is closed, or was moving to another placement: apply the placement again.")


def refining(
    session: Workbench,
    placements: abc.Sequence[Prepared],
    limits: Limits,
    *,
    in_flight: int | None,
    queue: int,
    state_memory: float | None,
    priority: int,
) -> Server:
    """Start a server that looks for a better placement, within limits, by a small share of the requests.

    Raises:
        UsageError: costs are not known, or there are replicas.
        DeviceError: a device exists in simulation only, or has no room.
    """
    if len(placements) > 1:
        raise UsageError("A placement with replicas is not refined: one replica would have to be compared with all of them.")
    proposals = Proposals(session, in_flight, priority)
    session.reference.output_check()  # prepared before the server starts, as it runs the reference
    server = Server(executors(placements, in_flight, priority), queue=queue, state_memory=state_memory)
    server.attend(Refiner(server, proposals, limits))
    return server


def joining(session: Workbench, max_rows: int | Literal["auto"], delay_s: float) -> Joining | str | None:
    """Return the rules by which a server joins requests; or why it cannot join any; or None if it should not.

    Args:
        session: has the model.
        max_rows: maximum rows of a batch, 0 or 1 to join no requests; or ``auto`` to measure which number is best.
        delay_s: seconds that a request may wait for others while a device is free.

    Raises:
        UsageError: ``max_rows`` or ``delay_s`` is negative, or ``max_rows`` is a number and requests cannot be joined.
    """
    if (max_rows != "auto" and max_rows < 0) or not 0 <= delay_s < math.inf:
        raise UsageError(f"A batch has 0 rows or more, and no negative delay; got {max_rows} rows and {delay_s} seconds.")
    if max_rows != "auto" and max_rows < 2:
        return None
    model = session.model
    why = "it keeps state" if model.stateful else why_fixed(model.inputs, model.outputs)
    if why is not None:
        if max_rows != "auto":
            raise UsageError(f"Requests of {model.path} cannot be joined: {why}. Leave out the batch size.")
        return why
    first = model.sample_inputs()
    for other in other_inputs(model, first, given=model.given is not None):
        alike = all(other[name].shape == value.shape for name, value in first.items())
        if alike and not all(np.array_equal(other[name], value) for name, value in first.items()):
            padding = Padding.of(model.inputs, model.outputs)
            return Joining((first, other), session.tolerance, None if max_rows == "auto" else max_rows, delay_s, padding)
    return "no two different inputs of the same shapes are known"


def measure(
    placements: abc.Sequence[Prepared], traffic: Traffic, *, warmup: int, inputs: Arrays | None, watch: Watch | None = None
) -> RateReport:
    """Serve traffic on a placement and its replicas; check the outputs of each replica before, and of the server after.

    Args:
        placements: the prepared placement and its replicas.
        traffic: how requests arrive.
        warmup: runs of each replica before them that do not count.
        inputs: by name; None for the session's.
        watch: given the server, makes a context in which requests arrive; None for no context.

    Raises:
        UsageError: an input is missing or has the wrong shape.
        DeviceError: a device exists in simulation only, or has no room.
        ExecutionError: a device failed, or requests did.
    """
    session, placement = placements[0].home, placements[0].placement
    due, checked = traffic.times(), given_to(session, inputs)
    check = session.reference.output_check(None if inputs is None else checked)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(executor) for executor in executors(placements)]
        error = functools.reduce(OutputDifference.worse, [check(executor) for executor in opened])
        for executor in opened * warmup:
            executor.run(checked)
        server = stack.enter_context(Server(opened, queue=traffic.queue))
        at_once = sum(executor.in_flight for executor in opened)
        with Sampler() as sampler, contextlib.nullcontext() if watch is None else watch(server):
            if due is not None:
                served = offer(server, checked, due)
            else:
                served = keep_busy(server, checked, at_once, requests=traffic.requests, seconds=traffic.until)
        trace, labels = server.history.trace(), [executor.labels for executor in opened]
        ended = [one for one in server.history.requests() if math.isfinite(one.ended)]
        done = [replace(one, replica=next(k for k, of in enumerate(labels) if of is one.labels)) for one in ended]
        if served.load is None and served.error is not None:
            raise served.error
        if not served.interrupted:
            error = error.worse(OutputDifference.between(server.submit(checked).result(), check.expected))
    return RateReport(
        model=str(session.model.path),
        placement=placement,
        rate=traffic.rate,
        arrivals=traffic.arrivals,
        seed=traffic.seed,
        in_flight=at_once,
        queue=traffic.queue,
        served=served,
        output_error=error,
        failed=error.wrong(session.tolerance),
        cluster=session.cluster,
        trace=trace,
        plans=[executor.plan for executor in opened],
        done=done,
        readings=sampler.readings,
    )
