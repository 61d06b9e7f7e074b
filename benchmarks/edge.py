"""The overhead of running on several nodes: graphs of segments that sleep for a known time, and whole models on edge nodes.

Each graph, a chain or diamonds one after the other, is run on three nodes of this machine, whose actors exchange tensors
through placeit's sockets. In one interleaved race, it is also run through Ray's object references and through Ray's compiled
graphs (the latter with tensors of up to 400 kB: with 4 MB, Ray 2.60 hangs). No segment computes anything, so the time in excess
of the critical path is overhead: decisions, copies, waking late. It is divided by the number of segments on that path; each of
them is on another node than the one before.

Nodes are first joined by the loopback interface, then by an emulated network of 100 Mbit/s and 5 ms, which needs root
(``_network.py``). The CPU time of its switch is reported, in cores that are missing for everything else. On the network, the
second of two calls is timed, because TCP sends slowly after a pause, for any sender. The bytes that cross in a call are
counted, and compared with the bytes of the tensors that have to cross.

Models run on a head of one core and two edge nodes that have a CPU quota of 0.3 cores each, over that network and over one of 1
Gbit/s. The split with the lowest simulated time is raced against every single node and against the same split through Ray's
references, and compared with its simulated time. The bytes that cross the network are counted here, too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks._edge_graphs import NODES, graphs
from benchmarks._edge_models import on_nodes
from benchmarks._harness import Args, Report, main
from benchmarks._network import cluster, network, reason_why_no_quotas, reason_why_not
from placeit.devices.nodes import local

MODELS = ("inception_v3", "bert_base")
RATES = ((100e6, 5e-3), (1e9, 0.0))
"""Rate of the links in bits per second, and their delay in seconds."""


def run(args: Args, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "cluster.json")
        ray = local.start(NODES, file)
        try:
            report.add(graphs(args, ray, None))
        finally:
            ray.stop(file)
    if why := reason_why_not():
        report.note(f"What needs an emulated network is left out. {why}")
        return
    with network(NODES) as made, cluster(made) as ray:
        report.add(made.call("head", graphs, args, ray, made))
    if why := reason_why_no_quotas():
        report.note(f"Models on slow nodes are left out. {why}")
        return
    failed = 0
    for rate, delay in RATES[-1:] if args.quick else RATES:
        for name in args.models or MODELS[: 1 if args.quick else None]:
            try:
                with network(NODES, rate=rate, delay=delay) as made, cluster(made) as ray:
                    report.add(made.call("head", on_nodes, name, args, ray, made))
            except Exception as error:  # noqa: BLE001 (the other figures are still useful)
                report.note(f"{name} at {rate / 1e6:g} Mbit/s failed: {type(error).__name__}: {error}")
                failed += 1
    report.claim("models that failed", failed, "", at_most=0)


if __name__ == "__main__":
    main("edge", run, models=MODELS)
