"""Quantised models: roundings stay with what reads them, and the check of outputs allows for them, and for no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from placeit.backends.base import Model
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.measuring.check import tolerance_of_rounding
from placeit.planning.coarsen import coarsen
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.eight_bit import EIGHT_BIT

ops = ov.opset13
LINKS = {pair: Link(np.inf, 0.0) for pair in (("a", "b"), ("b", "a"))}
PAIR = Cluster(tuple(Device(name, address=Address("CPU", (allowed_cores()[0],))) for name in ("a", "b")), LINKS)
WIDTH, ROWS = 128, 64
STEP = 1 / 127.5  # of 256 levels between -1 and 1


def network(layers: int = 4, change: Callable[[int, dict[str, Any]], None] = lambda _layer, _made: None) -> OpenVinoModel:
    """Layers of int8 activations and weights, whose outputs lie between -1 and 1.

    Args:
        layers: how many.
        change: what is done to the numbers of each layer.
    """
    rng = np.random.default_rng(0)
    x = ops.parameter([ROWS, WIDTH], ov.Type.f32, name="x")
    value = x
    for layer in range(layers):
        made = {
            "weights": rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8),
            "bias": rng.standard_normal(WIDTH).astype(np.float32) * 0.3,
            "range": 1.0,
        }
        change(layer, made)
        limits = (np.float32(-made["range"]), np.float32(made["range"]))
        rounded = ops.fake_quantize(value, *limits, *limits, 256, name=f"round{layer}")
        weights = ops.multiply(ops.convert(ops.constant(made["weights"]), "f32"), np.float32(1.5 / 127 / WIDTH**0.5))
        value = ops.matmul(rounded, weights, False, False, name=f"product{layer}")
        value = ops.tanh(ops.add(value, made["bias"], name=f"sum{layer}"), name=f"tanh{layer}")
    return describe(ov.Model([ops.result(value, name="y")], [x], "network"), Path("network"))


def apart(model: Model) -> Any:
    """Run with every other op on the other device and every op in a separate segment; return the tolerance and the report."""
    names = model.graph.names
    devices = np.arange(len(names), dtype=np.int32) % 2
    placement = Placement(names, devices, ("a", "b"), "", np.arange(len(names), dtype=np.int32))
    with Session(model, PAIR, cache=None) as session:
        session.divide(placement, by_segments=True)
        return session.tolerance, session.run(placement, runs=1)


def test_roundings_stay_with_what_reads_them() -> None:
    model = network()
    with Session(model, PAIR, cache=None) as session:
        grouping = session.grouping
    group = dict(zip(model.graph.names, grouping.group_of.tolist(), strict=True))
    assert len(grouping.groups) > 3
    for layer in range(4):
        assert group[f"round{layer}"] == group[f"product{layer}"]


@EIGHT_BIT
def test_a_right_split_is_right_wherever_it_rounds() -> None:
    tolerance, report = apart(network())
    assert 0.001 < report.output_error.max_rel <= tolerance  # roundings were separated from what reads them
    assert report.failed is None
    assert tolerance == pytest.approx(0.001 + 4 * STEP * (4 / 6) ** 0.5)


@dataclass(frozen=True, eq=False, kw_only=True)
class Mistaken(OpenVinoModel):
    """A model whose segments compute something else than the model itself."""

    right: OpenVinoModel

    def reference(self, device: Device | None, precision: str) -> Any:
        return self.right.reference(device, precision)


def _no_bias(layer: int, made: dict[str, Any]) -> None:
    made["bias"] *= layer != 1


def _other_range(layer: int, made: dict[str, Any]) -> None:
    made["range"] *= 0.5 if layer == 3 else 1.0


def _channels_swapped(layer: int, made: dict[str, Any]) -> None:
    if layer == 2:
        made["weights"][:, [0, 1]] = made["weights"][:, [1, 0]]


@pytest.mark.parametrize("mistake", [_no_bias, _other_range, _channels_swapped])
def test_a_wrong_split_of_a_quantised_model_is_refused(mistake: Callable[[int, dict[str, Any]], None]) -> None:
    wrong = network(change=mistake)
    said = {field.name: getattr(wrong, field.name) for field in fields(wrong)}
    tolerance, report = apart(Mistaken(**said, right=network()))
    assert report.output_error.max_rel > tolerance
    assert f"the tolerance is {tolerance:g}" in report.failed


def test_what_is_allowed_grows_with_the_roundings_on_a_path_up_to_a_bound() -> None:
    shallow, deep, deepest = (tolerance_of_rounding(m.graph, m.rounding) for m in map(network, (1, 4, 64)))
    assert shallow == pytest.approx(4 * STEP / 6**0.5)
    assert deep == pytest.approx(2 * shallow)
    assert deepest == 0.1
    assert tolerance_of_rounding(network(1).graph, {}) == 0.0


def parts(value: Any, inputs: list[Any]) -> OpenVinoModel:
    return describe(ov.Model([ops.result(value, name="y")], inputs, "parts"), Path("parts"))


def test_values_that_are_quantised_already_are_dequantised_where_they_are_used() -> None:
    x = ops.parameter([4, 8], ov.Type.u8, name="x")
    value = ops.subtract(ops.convert(x, "f32", name="convert"), np.float32(128), name="shift")
    value = ops.multiply(value, np.float32(0.01), name="scale")
    value = ops.matmul(value, np.ones((8, 8), np.float32), False, False, name="product")
    model = parts(ops.tanh(value), [x])
    assert model.pairs == (("convert", "shift", "scale", "product"),)
    assert model.rounding == {}


def test_a_rounding_that_several_ops_read_ties_them_to_no_device() -> None:
    x = ops.parameter([4, 8], ov.Type.f32, name="x")
    limits = (np.float32(0), np.float32(2))
    rounded = ops.fake_quantize(x, *limits, *limits, 16, name="round")
    model = parts(ops.add(ops.tanh(rounded), ops.relu(rounded)), [x])
    assert model.pairs == ()
    assert model.rounding == {"round": pytest.approx(1 / 15)}


@pytest.mark.parametrize(
    ("compressed", "dynamic", "rounding"),
    [(True, True, {"product": pytest.approx(1 / 127)}), (True, False, {}), (False, True, {})],
)
def test_a_runtime_may_round_what_meets_compressed_weights_if_the_model_asks_for_it(
    compressed: bool, dynamic: bool, rounding: dict[str, Any]
) -> None:
    x = ops.parameter([4, 8], ov.Type.f32, name="x")
    weights = ops.constant(np.ones((8, 8), np.int8 if compressed else np.float16))
    product = ops.matmul(x, ops.multiply(ops.convert(weights, "f32"), np.float32(0.1)), False, False, name="product")
    model = ov.Model([ops.result(product, name="y")], [x], "parts")
    if dynamic:
        model.set_rt_info("32", ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    assert describe(model, Path("parts")).rounding == rounding


def test_pairs_are_in_one_group_and_pins_may_separate_them() -> None:
    model = network(1)
    grouping = coarsen(model.graph, keep_together=model.pairs, co_locate=False)
    assert ("round0", "product0") in [grouping.members(group) for group in range(len(grouping.groups))]
    with Session(model, PAIR, cache=None, constraints=Constraints(pins={"round0": "a", "product0": "b"})) as session:
        of = session.grouping.group_of
    assert of[model.graph.index["round0"]] != of[model.graph.index["product0"]]
