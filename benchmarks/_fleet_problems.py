"""Fleets that the benchmark simulates: nodes, sites, models, requests and failures, from public figures and stated assumptions.

Published figures:

* nodes: the catalogue of devices (``placeit/devices/catalog.yaml``), data sheets of the makers;
* models: parameters and multiply-adds of torchvision's documentation, of YOLOX's model zoo (arXiv:2107.08430), of BERT
  (arXiv:1810.04805), Whisper (arXiv:2212.04356) and Llama 2 (arXiv:2307.09288); for the last three, operations are computed as
  two for each parameter and token;
* links: Gigabit Ethernet; 5 ms from an edge site to its region, as 58 % of users reach an edge server within a round trip of
  10 ms (Charyyev, Arslan, Gunes, "Latency comparison of cloud datacenters and edge servers", GLOBECOM 2020); 10 ms from a
  region to the core, which is 2,000 km of fibre;
* popularity: log-normal, so that the 18.6 % most popular models get 99.6 % of the requests, and the daily curve: half of the
  peak is there all day (Shahrad et al., "Serverless in the wild", USENIX ATC 2020, on applications of Azure Functions);
* failures: 1,000 of single machines, and 20 of racks, in a year of 2,400 machines (Dean 2008, after Hennessy and Patterson,
  "Computer Architecture", figure 6.1); repairs take a log-normal time, with a mean between an hour and a day (Schroeder and
  Gibson, "A large-scale study of failures in high-performance computing systems", DSN 2006).

Assumptions: everything else. Edge nodes fail ten times as often as machines of data centres; a failure of a rack is one of an
edge site; repairs take six hours on average. 30 % of the nodes are in regions of 500 nodes each, the rest at edge sites of 20.
The times of a request are computed by the roofline model, as for described devices. A limit is the least round number that is
at least four times the seconds of a request on a Jetson AGX Orin. A model is used at one site for each request in two seconds
of its rate. Time zones are up to eight hours apart. Each five minutes have their own deviation from the expected rate,
log-normal with 10 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.devices.described import catalog, roofline_seconds
from placeit.serving.latency import LatencyLimit
from placeit.workload.entries import Entry, Workload
from placeit.workload.fleet import Demand, Fleet, Sites
from placeit.workload.fleet_bound import capacity

__all__ = ["STEP_S", "Problem", "problem"]

STEP_S = 300.0
_REGION, _EDGE, _IN_REGIONS = 500, 20, 0.3
_GIGABIT, _TEN_GIGABIT = 1e9 / 8, 1e10 / 8
# share of the nodes in regions or at edge sites, and GiB of memory where the catalogue has none: assumptions
_NODES = {
    True: {"xeon-platinum-8480p": (0.5, 256), "t4": (0.3, 16), "l4": (0.15, 24), "a10": (0.05, 24)},
    False: {
        "raspberry-pi-5": (0.4, 8),
        "jetson-orin-nano": (0.25, 8),
        "core-ultra-7-155h-gpu": (0.2, 32),
        "jetson-orin-nx": (0.1, 16),
        "jetson-agx-orin": (0.05, 64),
    },
}
# millions of parameters, 1e9 operations, ops (assumed except for ResNet-50 and BERT), kB of a request, kB between two parts
_MODELS = {
    "mobilenet-v3-large": (5.5, 0.44, 150, 150, 200),
    "resnet-50": (25.6, 8.2, 178, 150, 800),
    "efficientnet-v2-s": (21.5, 16.7, 300, 150, 400),
    "vit-b-16": (86.6, 35.1, 300, 150, 600),
    "yolox-s": (9.0, 26.8, 250, 300, 3000),
    "yolox-x": (99.1, 281.9, 400, 300, 6000),
    "bert-base": (110.0, 21.8, 390, 2, 400),
    "whisper-small-encoder": (88.0, 264.0, 300, 960, 4600),
    "llama-2-7b-prompt": (6740.0, 1730.0, 800, 2, 2100),
}
_SHARES = (0.2, 0.2, 0.1, 0.1, 0.15, 0.05, 0.12, 0.05, 0.03)  # of the models: an assumption
_LIMITS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_POPULARITY = 3.55  # sigma of the log-normal rates: cdf(sigma - 0.893) = 0.996, and the upper 18.6 % begin at 0.893
_FAILURES = 1000 / 2400 / 365  # of a node in a day
_SITE_FAILURES = 20 / 2400 * _EDGE / 365  # of an edge site in a day
_EDGE_FACTOR, _REPAIR_H = 10.0, 6.0


@dataclass(frozen=True, eq=False)
class Problem:
    """A fleet, its demand, and a day: expected and actual rates, ``float32[T, Q]``, and nodes that work, ``bool[T, N]``."""

    fleet: Fleet
    demand: Demand
    expected: NDArray[np.float32]
    rates: NDArray[np.float32]
    alive: NDArray[np.bool_]


def problem(nodes: int, models: int, seed: int, steps: int = 288) -> Problem:
    """Return a fleet whose rates are, at their peak, the most that its nodes could serve by `capacity`."""
    rng = np.random.default_rng(seed)
    fleet, zone = _fleet(nodes, rng)
    demand, base = _demand(fleet, models, rng)
    hour = np.arange(steps)[:, None] * STEP_S / 3600 + zone[demand.site]
    expected = base * (0.75 + 0.25 * np.cos(2 * np.pi * (hour - 15) / 24))
    peak = expected[np.argmax(expected.sum(axis=1))]
    expected *= capacity(fleet, demand, peak)[0]
    rates = expected * rng.lognormal(-0.005, 0.1, expected.shape)
    return Problem(fleet, demand, expected.astype(np.float32), rates.astype(np.float32), _alive(fleet, steps, rng))


def _fleet(nodes: int, rng: np.random.Generator) -> tuple[Fleet, NDArray[np.float64]]:
    regions = max(1, nodes // _REGION)
    inner = round(nodes * _IN_REGIONS)
    edges = -(-(nodes - inner) // _EDGE)
    parent = np.array([-1, *[0] * regions, *(1 + np.arange(edges) % regions)], np.int32)
    far = np.arange(len(parent)) <= regions
    names = ["core", *(f"region{i}" for i in range(regions)), *(f"edge{i}" for i in range(edges))]
    sites = Sites(names, parent, np.where(far, 10e-3, 5e-3), np.where(far, _TEN_GIGABIT, _GIGABIT))
    site = np.concatenate((1 + np.arange(inner) % regions, 1 + regions + np.arange(nodes - inner) % edges)).astype(np.int32)
    classes = [name for kind in _NODES.values() for name in kind]
    of = np.concatenate(
        [
            rng.choice([classes.index(name) for name in _NODES[kind]], count, p=[share for share, _ in _NODES[kind].values()])
            for kind, count in ((True, inner), (False, nodes - inner))
        ]
    ).astype(np.int32)
    memory = np.array([_NODES[name in _NODES[True]][name][1] for name in classes])[of] * 2.0**30
    zones = rng.uniform(-4, 4, regions)
    zone = np.array([0.0, *zones, *zones[parent[1 + regions :] - 1]])
    return Fleet(sites, [f"node{i}" for i in range(nodes)], site, classes, of, memory), zone


def _demand(fleet: Fleet, models: int, rng: np.random.Generator) -> tuple[Demand, NDArray[np.float64]]:
    kind = rng.choice(len(_MODELS), models, p=_SHARES)
    parameters, flops, ops, sent, between = np.array(list(_MODELS.values())).T
    bytes_ = parameters * 4e6
    each = [catalog()[name][0] for name in fleet.classes]
    seconds = np.array([roofline_seconds(flops * 1e9 / ops, bytes_ / ops, one) * ops for one in each]).T
    agx = seconds[:, fleet.classes.index("jetson-agx-orin")]
    limits = [next((limit for limit in _LIMITS_S if limit >= 4 * time), _LIMITS_S[-1]) for time in agx]
    rate = rng.lognormal(0.0, _POPULARITY, models)
    rate *= len(fleet.names) * 10 / rate.sum()
    edges = np.setdiff1d(np.arange(len(fleet.sites.names)), np.append(fleet.sites.inner(), 0))
    model, site, base = [], [], []
    for number in range(models):
        count = int(np.clip(rate[number] / 2, 1, len(edges)))
        share = rng.dirichlet(np.full(count, 4.0))
        model += [number] * count
        site += rng.choice(edges, count, replace=False).tolist()
        base += (rate[number] * share).tolist()
    entries = tuple(
        Entry(f"{list(_MODELS)[k]}-{number}", Path("none.onnx"), rate=float(rate[number]), limit=LatencyLimit(95, limits[k]))
        for number, k in enumerate(kind)
    )
    sizes = (bytes_[kind], sent[kind] * 1e3, between[kind] * 1e3)
    places = (np.array(model, np.int32), np.array(site, np.int32))
    return Demand(Workload(entries), seconds[kind], *sizes, *places, hop=(1e-4, _GIGABIT)), np.array(base)


def _alive(fleet: Fleet, steps: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    alive = np.ones((steps, len(fleet.names)), bool)
    edge = ~np.isin(fleet.site, fleet.sites.inner())
    chance = _FAILURES * STEP_S / 86400 * np.where(edge, _EDGE_FACTOR, 1.0)
    fails = rng.random(alive.shape) < chance
    site_fails = rng.random((steps, len(fleet.sites.names))) < _SITE_FAILURES * STEP_S / 86400
    fails |= site_fails[:, fleet.site] & edge
    fails[0] = False
    sigma = 1.0
    for step, node in np.argwhere(fails):
        repair = rng.lognormal(np.log(_REPAIR_H) - sigma**2 / 2, sigma) * 3600 / STEP_S
        alive[step : step + 1 + int(repair), node] = False
    return alive
