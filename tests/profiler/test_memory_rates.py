"""What groups read of their weights, and the rates at which devices read memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs
from placeit.profiler.cache import Cache
from placeit.profiler.estimates import estimated
from placeit.profiler.memory_rates import MIN_BYTES, Rates, shared_reads, weights_read
from placeit.profiler.peaks import read_rate

TABLE, WIDTH, ROWS = 1000, 64, 3


def core_set(core: int, **more: Any) -> Device:
    return Device(f"CPU@{core}", address=Address("CPU", (core,)), **more)


def decoder() -> OpenVinoModel:
    """Rows of a table, a product, and a state that is read, added to and written."""
    tokens = op.parameter([ROWS], np.int64, name="tokens")
    table = op.constant(np.ones((TABLE, WIDTH), np.float32))
    rows = op.gather(table, tokens, op.constant(0), name="rows")
    info = ov.op.util.VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([ROWS, WIDTH]), ov.Type.f32, "state"
    variable = ov.op.util.Variable(info)
    state = op.read_value(op.constant(np.zeros((ROWS, WIDTH), np.float32)), variable, name="state")
    total = op.add(state, rows, name="total")
    product = op.matmul(total, op.constant(np.ones((WIDTH, 2 * WIDTH), np.float32)), False, False, name="product")
    return describe(ov.Model([op.result(product)], [op.assign(total, variable)], [tokens], "decoder"), Path("decoder"))


def test_a_product_reads_all_of_its_weights_a_table_its_rows_and_a_state_itself() -> None:
    graph = decoder().graph
    read = dict(zip(graph.names, weights_read(graph).tolist(), strict=True))
    rows = ROWS * WIDTH * 4
    assert (read["product"], read["rows"], read["state"], read["total"]) == (WIDTH * 2 * WIDTH * 4, rows, rows, 0)


def test_a_described_device_takes_no_longer_for_a_table_of_which_it_reads_a_few_rows() -> None:
    model, slow = decoder(), Device("slow", kind="described", flops_per_s=1e15, bytes_per_s=1e6)
    grouping = Grouping.singletons(model.graph)
    core = estimated(model, grouping, Cluster((slow,)), lambda *_: pytest.fail("nothing is measured")).core[:, 0]
    assert core[model.graph.index["rows"]] == pytest.approx((ROWS * WIDTH * 4 * 2 + ROWS * 8) / 1e6)


class Measured:
    """Rates that are given, by cores, in place of measured ones."""

    def __init__(self, rates: dict[tuple[int, ...], float]) -> None:
        self._rates = rates
        self.asked: list[tuple[tuple[int, ...], int]] = []

    def __call__(self, device: Device, size: int) -> float | None:
        self.asked.append((device.cores, size))
        return self._rates.get(device.cores)


def test_a_rate_is_measured_once_for_weights_of_a_size_and_kept(cache: Cache) -> None:
    measured = Measured({(0,): 5e9, (1,): 6e9})
    rates = Rates(MIN_BYTES * 1.5, cache, measured)
    assert [rates.of(core_set(0)), rates.of(core_set(1)), rates.of(core_set(0))] == [5e9, 6e9, 5e9]
    assert Rates(MIN_BYTES * 1.2, cache, measured).of(core_set(1)) == 6e9
    assert measured.asked == [((0,), MIN_BYTES), ((1,), MIN_BYTES)]
    assert Rates(MIN_BYTES * 2.1, cache, measured).of(core_set(1)) == 6e9
    assert measured.asked[2:] == [((1,), 2 * MIN_BYTES)]


def test_a_core_set_reads_memory_at_one_rate_whatever_runtime_drives_it(cache: Cache) -> None:
    measured = Measured({(0,): 5e9})
    rates = Rates(MIN_BYTES, cache, measured)
    other = Device("ort:CPU@0", "ort", Address("CPU", (0,), runtime="ort"))
    assert rates.of(core_set(0)) == rates.of(other) == 5e9


def test_no_rate_is_known_of_small_models_and_of_what_openvino_does_not_drive() -> None:
    never: Callable[..., float | None] = lambda *_: pytest.fail("nothing is to be measured")  # noqa: E731
    assert Rates(MIN_BYTES - 1, None, never).of(core_set(0)) is None
    assert Rates(MIN_BYTES, None, never).of(Device("cuda:0", "cuda", Address("cuda:0"))) is None
    assert Rates(1.0, None, never).of(Device("board", kind="described", flops_per_s=1.0, bytes_per_s=2.0)) == 2.0


def known(devices: tuple[Device, ...], core_s: float, load_s: float) -> tuple[Grouping, Costs]:
    grouping = Grouping.singletons(decoder().graph)
    pairs = {(a.name, b.name): Link(np.inf, 0.0) for a in devices for b in devices if a != b}
    free = Costs.zero(len(grouping.groups), Cluster(devices, pairs))
    core = np.full_like(free.core, core_s)
    return grouping, replace(free, core=core, load=np.full_like(core, load_s))


def test_core_sets_of_this_machine_share_its_memory() -> None:
    devices = core_set(0), core_set(1), Device("CPU@0-1", address=Address("CPU", (0, 1))), core_set(2, slowdown=2.0)
    away = Device("there/CPU@0", address=Address("CPU", (0,), node="there"))
    grouping, costs = known((*devices, away), 1.0, 0.0)
    measured = Measured({(0, 1, 2): 7e9})
    shared = shared_reads(grouping, costs, Rates(MIN_BYTES, None, measured))
    assert shared is not None
    assert shared.devices.tolist() == [[True, True, True, True, False]]
    assert shared.bytes_per_s.tolist() == [7e9]
    assert shared.bytes.sum() == weights_read(decoder().graph).sum()
    assert measured.asked == [((0, 1, 2), MIN_BYTES)]


def test_a_memory_is_at_least_as_fast_as_devices_together_were_seen_to_read_it() -> None:
    grouping, costs = known((core_set(0), core_set(1)), 1e-6, 1e-6)
    shared = shared_reads(grouping, costs, Rates(MIN_BYTES, None, Measured({(0, 1): 1.0})))
    assert shared is not None
    assert shared.bytes_per_s[0] == pytest.approx(2 * weights_read(decoder().graph).sum() / (2e-6 * len(grouping.groups)))


@pytest.mark.parametrize("devices", [(core_set(0),), (core_set(0), Device("GPU.0", address=Address("GPU.0")))])
def test_one_core_set_shares_its_memory_with_nothing_that_is_known(devices: tuple[Device, ...]) -> None:
    grouping, costs = known(devices, 1.0, 0.0)
    assert shared_reads(grouping, costs, Rates(MIN_BYTES, None, Measured({}))) is None


def test_a_core_reads_memory_at_some_rate() -> None:
    rate = read_rate(Device("CPU", address=Address("CPU")), 1 << 20)
    assert rate is not None
    assert rate > 0
