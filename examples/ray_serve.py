"""Serve a placed workload on the nodes of a Ray cluster with Ray Serve; runs until Ctrl-C.

    pip install 'placeit[ray]' 'ray[serve]'
    placeit optimize workload.yaml --ray-address 10.0.0.1:6379 -d edge1/CPU@0-3,edge2/CPU@0-3
    python -m examples.ray_serve workload.placed.yaml --ray-address 10.0.0.1:6379

Ray Serve starts one replica, which opens all models of the workload on the devices of their placements. Its placement group
has a bundle for each node, with one CPU for each core of these devices and one GPU for each NVIDIA GPU. So Ray reserves this
hardware, and restarts the replica on the same nodes when its devices are lost. The files must exist on the first node, under
the same paths. Requests are JSON, ``{"x": [[...]]}``, at http://127.0.0.1:8000/NAME.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request

from placeit.cli.nodes import reach_nodes
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.names import parse_devices
from placeit.devices.nodes import connection
from placeit.runtime.device_pool import shared_devices
from placeit.workload.entries import Workload
from placeit.workload.options import open_entry


def placement_group(devices: Sequence[str]) -> dict[str, Any]:
    """Return the options of a Ray Serve deployment that reserve devices: one bundle for each node, and the node's label.

    A whole CPU, whose number of cores is known only on its node, counts as one CPU. Ray counts only NVIDIA GPUs.
    """
    nodes: dict[str, tuple[set[int], set[str]]] = {}
    for address in parse_devices(devices):
        cores, gpus = nodes.setdefault(address.node, (set(), set()))
        cores.update(address.cores)
        if address.family == "cuda":
            gpus.add(address.unit)
    return {
        "placement_group_bundles": [{"CPU": float(len(cores) or 1), "GPU": float(len(gpus))} for cores, gpus in nodes.values()],
        "placement_group_bundle_label_selector": [{connection.LABEL: node} if node else {} for node in nodes],
        "ray_actor_options": {"num_cpus": 0},
    }


@serve.deployment
class Plan:
    """A Ray Serve replica that answers requests with the models of a placed workload.

    Args:
        file: path of the placed workload.
        address: address of the Ray cluster.
    """

    def __init__(self, file: str, address: str) -> None:
        connection.connect(address)
        workload = Workload.load(file)
        self.servers, self.sessions = {}, {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(shared_devices())
            cluster = discover(workload.used())
            for entry, priority in zip(workload, workload.priorities, strict=True):
                session = stack.enter_context(open_entry(entry, cluster))
                server = session.serve(Placement.load(entry.placement or ""), priority=priority)
                self.sessions[entry.name], self.servers[entry.name] = session, stack.enter_context(server)
            self.close = stack.pop_all().close

    def check_health(self) -> None:
        """Raise RuntimeError if the devices of a model are lost, so that Ray replaces this replica."""
        for name, server in self.servers.items():
            if not server.able:
                raise RuntimeError(f"the devices of {name} are lost")

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Run the model named by the path of a request, and return its outputs as lists."""
        name = request.url.path.strip("/")
        types = {spec.name: spec.dtype for spec in self.sessions[name].model.inputs}
        inputs = {key: np.array(value, types.get(key)) for key, value in (await request.json()).items()}
        outputs = await asyncio.wrap_future(self.servers[name].submit(inputs, wait=False))
        return {key: value.tolist() for key, value in outputs.items()}

    def __del__(self) -> None:
        """Finish accepted requests and close the models."""
        self.close()


def main(words: Sequence[str] | None = None, *, blocking: bool = True) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("--ray-address", metavar="HOST:PORT", help="default: the cluster of 'placeit cluster up'")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args(words)
    devices = Workload.load(args.workload).used()
    reach_nodes(devices, args.ray_address)
    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    plan = Plan.options(**placement_group(devices)).bind(args.workload, connection.connected().address)
    serve.run(plan, blocking=blocking)


if __name__ == "__main__":
    main()
