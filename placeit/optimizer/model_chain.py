"""Choose the devices of several models that run one after the other, as one application graph.

An op of the graph is a share of a stage's requests. Its seconds on a device are the mean time that one item of the source
causes there: the time of a request, times the requests that an item leads to. So the capacity of a placement is the bound of
:mod:`placeit.simulator.throughput_bound`. A stage whose shares are on several devices has a replica on each.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core.errors import UsageError
from placeit.core.placement import Placement
from placeit.core.problem import Problem
from placeit.measuring.measure import Race
from placeit.placers.annealing import Annealing
from placeit.placers.exact import Exact
from placeit.serving.server import QUEUE, Outputs, Server
from placeit.simulator.throughput_bound import Bottleneck, ThroughputCost, bottleneck
from placeit.workbench import Workbench
from placeit.workbench.prepared import Prepared
from placeit.workbench.serving import executors

__all__ = ["ModelStage", "PlacedStages", "place_stages"]

_WORTH = 0.98  # share of the seconds per item that a stage on several devices may take at most, compared with one device


@dataclass(frozen=True, eq=False)
class ModelStage:
    """One of several models in a row. It splits an item into requests, and joins their outputs to the item for the next model.

    Attributes:
        name: name of the stage.
        session: session of its model, on the devices that it may run on.
        split: returns the inputs of each request for an item; there may be no request at all.
        join: returns the item for the next stage, given an item and the outputs of its requests, in the order of ``split``.
    """

    name: str
    session: Workbench
    split: Callable[[Any], Sequence[Arrays]]
    join: Callable[[Any, Sequence[Outputs]], Any]

    def run(self, server: Server, item: Any) -> Any:
        """Run the requests of an item on a server of the stage's model, wait for them, and return the next stage's item."""
        answers = [server.submit(inputs) for inputs in self.split(item)]
        return self.join(item, [answer.result() for answer in answers])


@dataclass(frozen=True, eq=False)
class PlacedStages:
    """Stages, and the devices that each runs on.

    Attributes:
        stages: in order.
        problem: the application graph. Each stage is as many ops as there are devices; edges have bytes per item.
        devices: ``int32[V]``, the device of each op.
        requests: ``float64[S]``, mean number of requests that an item leads to in each stage.
        seconds: ``float64[S, D]``, seconds of a single request of each stage, alone on each device.
    """

    stages: Sequence[ModelStage]
    problem: Problem
    devices: NDArray[np.int32]
    requests: NDArray[np.float64]
    seconds: NDArray[np.float64]

    @property
    def bottleneck(self) -> Bottleneck:
        """The device that limits the items per second, and the seconds that an item keeps it and every other device busy."""
        return bottleneck(self.problem, self.devices)

    @property
    def capacity(self) -> float:
        """Items per second that the devices have the time for."""
        return 1.0 / self.bottleneck.seconds

    @property
    def where(self) -> Mapping[str, tuple[str, ...]]:
        """The devices of each stage, by name."""
        names, shares = self.problem.device_names, self.devices.reshape(len(self.stages), -1)
        return {stage.name: tuple(names[d] for d in np.unique(own)) for stage, own in zip(self.stages, shares, strict=True)}

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Placement of each stage's model, whole; with replicas if the stage is on several devices."""
        return {stage.name: _whole(stage.session, self.where[stage.name]) for stage in self.stages}

    @contextlib.contextmanager
    def open(self, *, queue: int = QUEUE) -> Iterator[dict[str, Server]]:
        """Open a server for each stage, by the stage's name; all are closed when the context ends.

        Args:
            queue: maximum number of requests that wait at each server.
        """
        placements = self.placements
        with contextlib.ExitStack() as stack:
            yield {one.name: stack.enter_context(_server(one.session, placements[one.name], queue)) for one in self.stages}

    def run(self, servers: Mapping[str, Server], item: Any) -> Any:
        """Run an item through all stages, on the servers of :meth:`open`, and return the result of the last stage.

        Any number of threads may do so at once: ``ThreadPoolExecutor(16).map`` has 16 items in flight, and keeps their order.
        """
        for stage in self.stages:
            item = stage.run(servers[stage.name], item)
        return item


def place_stages(stages: Sequence[ModelStage], items: Sequence[Any], *, rounds: int = 6, seed: int = 0) -> PlacedStages:
    """Find the devices on which models in a row serve the most items per second.

    The requests of some items are run on each device, one at a time, in rounds. The best placement by these times is chosen (by
    simulated annealing, if there are too many for an exact search). A stage is on one device unless several devices serve at
    least 2 % more. The time of ``split`` and ``join`` is not counted, and neither is memory. Between stages, items are in the
    memory of this process, and so use no link.

    Args:
        stages: in order, with sessions on the same devices.
        items: typical items: the number of requests that they lead to in each stage counts.
        rounds: runs of all these requests on each device.
        seed: seed of the order of runs, and of annealing.

    Raises:
        UsageError: no stages or items; sessions with different devices, or with described ones; a stage that gets no request.
        ExecutionError: a run failed.
    """
    if not stages or not items:
        raise UsageError("Stages are placed by the requests that items lead to: give at least one stage and one item.")
    names = stages[0].session.cluster.names
    for stage in stages:
        if stage.session.cluster.names != names:
            raise UsageError(
                f"The stages '{stages[0].name}' and '{stage.name}' have different devices ({', '.join(names)}; "
                f"{', '.join(stage.session.cluster.names)}): open their sessions on the same ones."
            )
        if not stage.session.cluster.executable:
            raise UsageError("Devices that are only described run nothing, so stages cannot be placed on them.")
    requests, sizes = np.zeros(len(stages)), np.zeros(len(stages))
    seconds = np.zeros((len(stages), len(names)))
    for s, stage in enumerate(stages):
        by_item = [list(stage.split(item)) for item in items]
        requests[s] = sum(map(len, by_item)) / len(items)
        arrays = (np.asarray(value) for one in by_item for inputs in one for value in inputs.values())
        sizes[s] = sum(value.nbytes for value in arrays) / len(items)
        if not requests[s]:
            raise UsageError(f"None of the items leads to a request of the stage '{stage.name}': give others.")
        seconds[s], answers = _measured(stage, by_item, rounds, seed)
        items = [stage.join(item, outputs) for item, outputs in zip(items, answers, strict=True)]
    problem = _problem(stages, seconds * requests[:, None], sizes)
    return PlacedStages(stages, problem, _best(problem, len(stages), seed), requests, seconds)


def _whole(session: Workbench, names: Sequence[str]) -> Placement:
    """Return a placement of the whole model as one segment, with a replica on each of the devices; it needs no costs."""
    groups = len(session.grouping.groups)
    first, *others = (
        replace(one, segments=np.zeros(len(one), np.int32))
        for one in (session.placement(np.full(groups, session.cluster.names.index(name), np.int32)) for name in names)
    )
    return replace(first, replicas=tuple(others))


def _server(session: Workbench, placement: Placement, queue: int) -> Server:
    return Server(executors([Prepared.of(session, one) for one in placement.every]), queue=queue)


def _measured(
    stage: ModelStage, by_item: Sequence[Sequence[Arrays]], rounds: int, seed: int
) -> tuple[NDArray[np.float64], list[list[Outputs]]]:
    """Return the seconds of a request on each device, ``float64[D]``, and the outputs of all requests, by item."""
    session, inputs_of_all = stage.session, list(itertools.chain(*by_item))
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(_server(session, _whole(session, [name]), QUEUE)) for name in session.cluster.names
        }
        timed = {name: functools.partial(_seconds, server, inputs_of_all) for name, server in servers.items()}
        found = Race(timed, seed=seed).run(rounds=rounds, drop_losers=False)
        first = next(iter(servers.values()))
        answers = iter([first.submit(inputs).result() for inputs in inputs_of_all])
    outputs = [list(itertools.islice(answers, len(one))) for one in by_item]
    return np.array([found[name].median for name in session.cluster.names]) / len(inputs_of_all), outputs


def _seconds(server: Server, requests: Sequence[Arrays]) -> float:
    """Return the sum of the seconds of requests that are served one after the other."""
    total = 0.0
    for inputs in requests:
        answer = server.submit(inputs)
        answer.result()
        total += answer.ended - answer.begun
    return total


def _problem(stages: Sequence[ModelStage], seconds: NDArray[np.float64], sizes: NDArray[np.float64]) -> Problem:
    """Return the application graph, by stages' seconds per item, ``float64[S, D]``, and bytes per item that they take in."""
    cluster, width = stages[0].session.cluster, seconds.shape[1]
    edges = [
        (width * s + i, width * (s + 1) + j)
        for s in range(len(stages) - 1)
        for i, j in itertools.product(range(width), repeat=2)
    ]
    return Problem.from_arrays(
        np.repeat(seconds / width, width, axis=0),
        np.array(edges, np.int32).reshape(-1, 2),
        np.repeat(sizes[1:] / width**2, width**2),
        np.full((width, width), np.inf),
        np.zeros((width, width)),
        conflicts=cluster.conflicts(),
        op_names=[f"{stage.name}, {share + 1} of {width}" for stage in stages for share in range(width)],
        device_names=cluster.names,
    )


def _best(problem: Problem, stages: int, seed: int) -> NDArray[np.int32]:
    """Return the placement with the lowest seconds per item, without replicas that gain too little."""
    cost = ThroughputCost(problem)
    try:
        found = Exact().place(problem, cost, seed=seed, evaluations=None)
    except UsageError:
        found = Annealing(restarts=4).place(problem, cost, seed=seed, evaluations=None)
    limit = float(cost(found)[0]) / _WORTH
    for s in range(stages):
        on_one_device = np.repeat(found[None], problem.devices, axis=0)
        on_one_device[:, s * problem.devices : (s + 1) * problem.devices] = np.arange(problem.devices)[:, None]
        seconds = cost(on_one_device)
        if seconds.min() <= limit:
            found = on_one_device[int(seconds.argmin())]
    return found
