"""Capacity of a placement, its bottleneck, and simulated latencies of requests that arrive at a rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placeit.optimizer.candidates import Candidate
from placeit.optimizer.whole_models import MODE
from placeit.planning.in_flight import share_of
from placeit.simulator.arrivals import SimulatedReplica, serve
from placeit.simulator.depth import at_depth
from placeit.simulator.load import ARRIVALS, LoadReport, arrival_times
from placeit.simulator.throughput_bound import Bottleneck, bottleneck, relative_throughput

__all__ = ["Service", "service_of"]

_REQUESTS = 1000  # of a simulated load


@dataclass(frozen=True, eq=False)
class Service:
    """Capacity of a placement, its bottleneck, and the latencies of requests that arrive at a rate.

    Attributes:
        capacity: requests per second: one over the seconds per request, as measured or else simulated.
        measured: whether the seconds per request were measured.
        in_flight: requests in flight at that capacity, in all replicas together; None in OpenVINO's throughput mode, which
            chooses their number.
        latency: mean seconds from the start of a request to its end with ``in_flight`` requests; None if ``in_flight`` is None.
        bottlenecks: by simulated times, the bottleneck of each replica; one if there are no replicas. A plain device, whose
            time is not simulated, is its own bottleneck.
        rate: requests per second that arrive; None if no rate was given.
        relative: share of them that is served, ``min(1, capacity / rate)``; None without a rate.
        load: simulated latencies and queues at that rate, by how requests arrive
            (:data:`placeit.simulator.load.ARRIVALS`); empty without a rate. Simulated times are scaled by the ratio of measured
            to simulated seconds per request.
    """

    capacity: float
    measured: bool
    in_flight: int | None
    latency: float | None
    bottlenecks: tuple[Bottleneck, ...]
    rate: float | None
    relative: float | None
    load: Mapping[str, LoadReport]

    @property
    def sustained(self) -> bool | None:
        """True if all arriving requests are served; None without a rate."""
        return None if self.rate is None else self.capacity >= self.rate

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict for JSON output."""
        return {
            "capacity": self.capacity,
            "capacity_measured": self.measured,
            "in_flight": self.in_flight,
            "latency_s": self.latency,
            "bottlenecks": [{"name": one.name, "seconds": one.seconds, "busy_s": one.busy} for one in self.bottlenecks],
            "rate": self.rate,
            "relative": self.relative,
            "sustained": self.sustained,
            "load": {arrivals: report.to_dict() for arrivals, report in self.load.items()},
        }


def service_of(candidate: Candidate, rate: float | None, *, in_flight: int | None, seed: int) -> Service:
    """Return the capacity and the load of a candidate of a search for throughput.

    Args:
        candidate: measured or simulated.
        rate: requests per second; None for no load.
        in_flight: requests in flight in all replicas together; None for as many as each needs.
        seed: seed of random arrivals.
    """
    simulated, measured = candidate.simulated_value, candidate.value
    seconds = measured.median if measured is not None else simulated or 0.0
    if simulated is None:  # a plain device, for which only the time of whole requests is known
        replicas, scale = [SimulatedReplica.whole(seconds, candidate.plan.problem.device_names[0], in_flight or 2)], 1.0
    else:
        depth, plans = share_of(in_flight, candidate.plans), candidate.plans
        flights = [at_depth(plan.problem, plan.placement, depth).in_flight for plan in plans]
        replicas = [SimulatedReplica(plan.problem, plan.placement, n) for plan, n in zip(plans, flights, strict=True)]
        scale = seconds / simulated if simulated > 0 else 1.0
    in_flight_in_all = None if in_flight is None and candidate.placer == MODE else sum(one.in_flight for one in replicas)
    load = {}
    if rate is not None and seconds > 0:
        for arrivals in ARRIVALS:
            times = arrival_times(arrivals, rate * scale, _REQUESTS, seed=seed)
            load[arrivals] = serve(replicas, times).scaled(scale)
    return Service(
        capacity=1 / seconds if seconds > 0 else math.inf,
        measured=measured is not None,
        in_flight=in_flight_in_all,
        latency=None if in_flight_in_all is None else in_flight_in_all * seconds,  # Little's law
        bottlenecks=tuple(bottleneck(one.problem, one.placement) for one in replicas),
        rate=rate,
        relative=None if rate is None else float(relative_throughput(seconds, rate)),
        load=load,
    )
