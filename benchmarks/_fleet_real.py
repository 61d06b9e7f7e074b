"""A fleet that is run: the error of predicted latencies, and of the predicted share of requests within limits.

Three nodes are on this machine, each in a network namespace, with a CPU quota of 0.5, 0.25 and 0.25 cores, joined by links of
1 Gbit/s; this needs root and cgroup v1 (``_network.py``). Four models are timed on a node of each class, by requests one after
the other. A fleet file with these times is planned by ``placeit.workload.fleet_plan.plan_fleet``, at half of the rates that the
nodes could serve by their computing time alone, with the same work for each model. The limit on p95 is five times the longest
time of a request. Each model is then served on the nodes of the plan, and requests arrive at random times (a Poisson process),
divided between nodes as planned. Predicted latencies are from a simulation of the same arrivals, in which a node serves one
request at a time; the predicted share within the limit is the fleet simulator's. Servers refuse no late requests. Run it alone
on the machine.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._architectures.packaged import PACKAGED
from benchmarks._edge_graphs import NODES
from benchmarks._harness import Args, Report
from benchmarks._models import progress, two_cores
from benchmarks._network import Network, cluster, network, reason_why_no_quotas
from placeit.backends import load
from placeit.core.placement import Placement
from placeit.devices.nodes import connection, local
from placeit.serving.load_run import Served, keep_busy, offer_all
from placeit.session import Session
from placeit.simulator.arrivals import SimulatedReplica, Stream, serve_streams
from placeit.simulator.load import poisson_arrivals
from placeit.workload.fleet_plan import FleetPlan, plan_fleet

__all__ = ["run"]

MODELS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "text_direction": {},
    "file_type": {},
    "text_recognizer": {"x": (1, 3, 48, 96)},
    "voice_rate": {},
}
"""Packaged models, with sizes of inputs that differ from the packaged ones."""
QUOTAS = dict(zip(NODES, (0.5, 0.25, 0.25), strict=True))
"""Cores of each node. One of two cores is left for the driver."""
CLASSES = {"large": NODES[0], "small": NODES[1]}
"""The node on which each class is timed."""
LOAD, LIMIT = 0.5, 5.0
SECONDS, QUICK_SECONDS = 20.0, 3.0
_TIMED_S, _QUICK_TIMED_S = 1.5, 0.3  # for which a model is timed on a node
_WARM_UP = 3  # requests before that


def run(args: Args, report: Report) -> None:
    """Run the fleet, and add its rows and claims."""
    if why := reason_why_no_quotas():
        report.note(f"No fleet is run. {why}")
        return
    with network(NODES, rate=1e9, delay=0.0) as made, cluster(made) as ray:
        report.add(made.call(NODES[0], _on_nodes, args, ray, made))


def _on_nodes(args: Args, ray: local.LocalCluster, made: Network) -> Report:
    first, second = two_cores()
    devices = [f"{node}/CPU@{first if node == NODES[0] else second}" for node in NODES]
    connection.connect(ray.address, token=ray.token, patience=30.0)
    try:
        with ExitStack() as stack:
            sessions = []
            for name in MODELS:
                progress(f"opening {name}")
                sample = PACKAGED[name]()
                shapes = dict(sample.shapes) | MODELS[name]
                inputs = sample.inputs or load(sample.path, input_shapes=shapes).random_inputs()
                sessions.append(stack.enter_context(Session(sample.path, devices, inputs=inputs, cache=None)))
                _ = sessions[-1].runtime  # starts its actors, before the CPU quotas apply
            for node, cores in QUOTAS.items():
                made.limit(node, cores)
                stack.callback(made.limit, node, None)
            return _planned(sessions, args, stack)
    finally:
        connection.disconnect()


def _planned(sessions: Sequence[Session], args: Args, stack: ExitStack) -> Report:
    """Time the models, plan the fleet, and run the plan."""
    whole = [{node: _whole(session, node) for node in NODES} for session in sessions]
    seconds = []
    for name, session, places in zip(MODELS, sessions, whole, strict=True):
        progress(f"timing {name}")
        length = _QUICK_TIMED_S if args.quick else _TIMED_S
        seconds.append({of: _seconds(session, places[node], length) for of, node in CLASSES.items()})
    rates = [1.0 / max(each.values()) for each in seconds]
    factor = LOAD * _plan(sessions, seconds, rates).planner.factor
    plan = _plan(sessions, seconds, [factor * rate for rate in rates])
    now, demand = plan.assigned, plan.planner.demand
    nodes = [NODES[node] for node in now.nodes[now.instance, 0]]
    models = demand.model[now.source]
    length = QUICK_SECONDS if args.quick else args.seconds or SECONDS
    arrivals = [
        poisson_arrivals(rate, max(1, round(rate * length)), seed=args.seed + flow) for flow, rate in enumerate(now.rate)
    ]
    servers = [
        stack.enter_context(sessions[model].serve(whole[model][node], in_flight=1))
        for model, node in zip(models, nodes, strict=True)
    ]
    progress(f"offering {sum(map(len, arrivals))} requests")
    inputs = [sessions[model].model.sample_inputs() for model in models]
    served = offer_all(list(zip(servers, inputs, arrivals, strict=True)))
    streams = [
        Stream([_node(node, now.part[instance])], times)
        for node, instance, times in zip(nodes, now.instance, arrivals, strict=True)
    ]
    predicted = [flights.ended - flights.arrived for flights in serve_streams(streams)]
    return _report(plan, [*zip(models, nodes, predicted, served, strict=True)])


def _whole(session: Session, node: str) -> Placement:
    """Return the placement of the whole model, as one segment, on a node."""
    placement = session.placement(np.full(len(session.grouping.groups), NODES.index(node), np.int32))
    return replace(placement, segments=np.zeros(len(placement.op_names), np.int32))


def _seconds(session: Session, placement: Placement, length: float) -> float:
    """Return the mean seconds of requests one after the other, since a quota slows only work that goes on for a while."""
    with session.serve(placement, in_flight=1) as server:
        inputs = session.model.sample_inputs()
        keep_busy(server, inputs, 1, requests=_WARM_UP)
        return float(keep_busy(server, inputs, 1, seconds=length).latencies.mean())


def _node(name: str, seconds: float) -> SimulatedReplica:
    """Return a node that takes the requests of a model in the order of their arrival."""
    return SimulatedReplica.whole(seconds, name, 1_000_000)


def _plan(sessions: Sequence[Session], seconds: Sequence[Mapping[str, float]], rates: Sequence[float]) -> FleetPlan:
    """Plan the fleet by its file. Each node can hold three quarters of the weights."""
    weights = [float(session.model.graph.bytes_once.sum()) for session in sessions]
    limit = LIMIT * max(max(each.values()) for each in seconds)
    models = [
        {
            "name": name,
            "seconds": {of: f"{time * 1e3}ms" for of, time in each.items()},
            "memory": f"{held:.0f} B",
            "request": f"{sum(value.nbytes for value in session.model.sample_inputs().values())} B",
            "rates": {"site": rate},
            "latency_limit": f"p95={limit * 1e3}ms",
        }
        for name, session, each, held, rate in zip(MODELS, sessions, seconds, weights, rates, strict=True)
    ]
    large, small = CLASSES
    fleet = {
        "sites": {"site": {}},
        "classes": {of: {"memory": f"{0.75 * sum(weights):.0f} B"} for of in CLASSES},
        "nodes": {node: {"site": "site", "class": large if node == NODES[0] else small} for node in NODES},
        "models": models,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "fleet.yaml")
        file.write_text(json.dumps(fleet))
        return plan_fleet(file)


def _report(plan: FleetPlan, flows: Sequence[tuple[int, str, NDArray[np.float64], Served]]) -> Report:
    """Compare predictions with what was measured, for each model.

    Args:
        plan: the plan.
        flows: model, node, predicted latencies and outcomes of the requests of a model that go to a node.
    """
    report, off, now = Report(), dict[str, list[float]](p50=[], p95=[], share=[]), plan.assigned
    in_time = plan.planner.in_time(now, now.rate)
    for k, entry in enumerate(plan.planner.demand.workload):
        own = [(node, predicted, served) for model, node, predicted, served in flows if model == k]
        if not own:
            report.note(f"The plan has no room for {entry.name}, so it gets no requests.")
            continue
        mine = plan.planner.demand.model[now.source] == k
        rate, within = float(now.rate[mine].sum()), float(in_time[mine].sum() / now.rate[mine].sum())
        guessed = np.concatenate([predicted for _, predicted, _ in own])
        latencies = np.concatenate([served.latencies for *_, served in own])
        arrived = sum(served.arrived for *_, served in own)
        kept = float((latencies <= entry.limited.seconds).sum()) / arrived
        columns: dict[str, float] = {}
        for percent in (50, 95):
            before, after = (float(np.percentile(each, percent)) for each in (guessed, latencies))
            columns |= {f"predicted_p{percent}_ms": before * 1e3, f"measured_p{percent}_ms": after * 1e3}
            columns[f"p{percent}_off_by"] = before / after - 1
            off[f"p{percent}"].append(abs(before / after - 1))
        off["share"].append(abs(within - kept))
        report.row(
            model=entry.name,
            nodes=", ".join(node for node, *_ in own),
            rate=rate,
            requests=arrived,
            limit_ms=entry.limited.seconds * 1e3,
            **columns,
            predicted_within_limit=within,
            measured_within_limit=kept,
        )
    report.claim("three nodes, four models: share of requests that are placed", float(now.rate.sum() / plan.rates.sum()), "")
    for name, value in off.items():
        what = "share of requests within the limit" if name == "share" else name
        report.claim(f"three nodes, four models: median error of the predicted {what}", float(np.median(value)), "")
    return report
