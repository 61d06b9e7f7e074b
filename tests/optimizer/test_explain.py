"""A problem whose schedule is worked out by hand: a stem, two branches, and what joins them.

With the left branch on ``b`` and the rest on ``a``, ``a`` runs the stem from 0 to 2, the right branch until 7, and the join
from 9 to 10; ``b`` runs the left branch from 4 to 7. Each of the two transfers takes 2. The input of the model is a separate
group, so that a stem on ``b`` waits for a transfer, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from rich.console import Console

from placeit.backends.openvino.model import describe
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import PlacementError, UsageError
from placeit.core.placement import Placement
from placeit.optimizer.diff import diff
from placeit.optimizer.explain import Explained, explain
from placeit.planning.segments import Costs
from placeit.profiler import estimates
from placeit.report.explained import explanation
from placeit.session import Session

NAMES = ("a", "b")
SECONDS = {"stem": (2.0, 4.0), "left": (6.0, 3.0), "right": (5.0, 4.0), "join": (1.0, 2.0)}
CUT = {"left": (0.0, 1.0)}
BYTES = 256.0


def _costs(
    session: Session,
    seconds: dict[str, tuple[float, ...]],
    cut: dict[str, tuple[float, ...]],
    room: tuple[float, float] = (np.inf, np.inf),
    load: float = 0.0,
) -> Costs:
    links = {(x, y): Link(BYTES, 1.0, "described") for x in NAMES for y in NAMES if x != y}
    members = [session.grouping.members(g) for g in range(len(session.grouping.groups))]
    rows = [[sum(known.get(op, (0.0, 0.0))[d] for op in ops) for d in range(2)] for known in (seconds, cut) for ops in members]
    core, cuts = np.split(np.array(rows), 2)
    devices = [replace(device, memory_bytes=size) for device, size in zip(session.cluster.devices, room, strict=True)]
    return Costs(core, cuts, np.zeros(2), Cluster(tuple(devices), links), np.full((1, 1), load))


@pytest.fixture
def known() -> dict[str, Any]:
    return {"seconds": SECONDS, "cut": {}}


@pytest.fixture
def session(known: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    ops = ov.opset13
    source = ops.parameter([1, 64], ov.Type.f32, "in")
    stem = ops.tanh(source, name="stem")
    ends = ops.multiply(stem, np.full((1, 64), 2.0, np.float32), name="left"), ops.sigmoid(stem, name="right")
    end = ops.result(ops.add(*ends, name="join"), "out")
    cluster = Cluster(tuple(Device(name, kind="described", flops_per_s=1e9, bytes_per_s=1e9) for name in NAMES))
    with Session(describe(ov.Model([end], [source], "known"), Path("known")), cluster, cache=None) as opened:
        monkeypatch.setattr(estimates, "estimated", lambda *_, **__: _costs(opened, **known))
        opened.profile()
        yield opened


def placed(session: Session, on_b: Sequence[str], **more: Any) -> Placement:
    groups = [int(any(op in on_b for op in session.grouping.members(g))) for g in range(len(session.grouping.groups))]
    return replace(session.placement(np.array(groups, np.int32)), **more)


def of(session: Session, op: str, **more: Any) -> Explained:
    return explain(session, placed(session, ["left"], **more), [op]).ops[0]


def changes(one: Explained) -> dict[str, float | None]:
    return {move.what: move.change_s for move in one.moves}


def test_the_schedule_and_slack_are_those_worked_out_by_hand(session: Session) -> None:
    found = explain(session, placed(session, ["left"]), list(SECONDS))
    assert (found.simulated_s, found.replanned_s) == (10, 10)
    assert [(one.op, one.device, one.start_s, one.finish_s, one.slack_s) for one in found.ops] == [
        ("stem", "a", 0, 2, 0),
        ("left", "b", 4, 7, 0),
        ("right", "a", 2, 7, 2),
        ("join", "a", 9, 10, 0),
    ]
    assert found.ops[1].core_s == {"a": 6, "b": 3}


def test_transfers_are_those_of_the_ops_group(session: Session) -> None:
    there = ("stem", BYTES, 2.0, "a", "b")
    back = ("left", BYTES, 2.0, "b", "a")

    def crossings(op: str) -> list[tuple[object, ...]]:
        return [(one.way, one.tensor, one.bytes, one.seconds, one.src, one.dst) for one in of(session, op).transfers]

    assert crossings("stem") == [("out", *there)]
    assert crossings("left") == [("in", *there), ("out", *back)]
    assert crossings("right") == []
    assert crossings("join") == [("in", *back)]
    assert ["left" in reader for one in of(session, "stem").transfers for reader in one.readers] == [True]


@pytest.mark.parametrize("known", [{"seconds": SECONDS, "cut": CUT}])
def test_cuts_cost_what_the_plan_charges_for_them(session: Session) -> None:
    one = of(session, "left")
    assert [(cut.tensor, cut.way, cut.seconds) for cut in one.cuts] == [("stem", "in", 0.5), ("left", "out", 0.5)]
    assert one.finish_s - one.start_s == SECONDS["left"][1] + 1.0


@pytest.mark.parametrize("known", [{"seconds": SECONDS, "cut": {}, "load": -0.25}])
def test_a_load_that_is_negative_by_noise_is_shown(session: Session) -> None:
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as shown:
        explanation(console, explain(session, placed(session, ["left"]), ["left"]))
    assert shown.get().count("-250 ms") == 2


@pytest.mark.parametrize(("op", "change"), [("stem", 4.0), ("left", 4.0), ("right", 4.0), ("join", 1.0)])
def test_a_move_changes_what_was_worked_out_by_hand(session: Session, op: str, change: float) -> None:
    one = of(session, op)
    assert changes(one)["group"] == change
    assert [move.device for move in one.moves if move.what == "group"] == ["a" if op == "left" else "b"]


def test_a_segment_moves_with_all_its_groups(session: Session) -> None:
    whole = explain(session, placed(session, []), ["left"]).ops[0]
    assert set(whole.segment_ops) == set(session.grouping.graph.names)
    assert whole.slack_s == 0
    assert changes(whole) == {"group": 10.0 - 14.0, "segment": 13.0 - 14.0}  # left alone; all of it on b


def test_the_worst_groups_are_those_whose_move_costs_least(session: Session) -> None:
    placement = placed(session, ["left"])
    assert [one.op for one in explain(session, placement).ops] == ["join", "right", "left", "stem"]
    assert [one.op for one in explain(session, placement, worst=2).ops] == ["join", "right"]


@pytest.mark.parametrize(
    ("result", "decided"),
    [
        (None, "unknown"),
        ({"chosen": {"placer": "heft"}}, "placer"),
        ({"chosen": {"placer": "heft", "devices": {"a": 1}}}, "unknown"),
        ({"chosen": {"placer": "heft"}, "pins": {"le*": "b"}}, "pin"),
        ({"chosen": {"placer": "heft"}, "pins": {"le*": "a", "right": "a"}}, "placer"),
        ({"chosen": {"placer": "heft"}, "memory_limits": {"a": 100.0}}, "memory"),
        ({"chosen": {"placer": "heft"}, "memory_limits": {"a": 1e6, "b": 10}}, "placer"),
        ({"chosen": "heft", "pins": ["left"], "memory_limits": ["a"]}, "unknown"),
    ],
)
def test_who_decided_is_what_the_placement_says(session: Session, result: Any, decided: str) -> None:
    assert [one.by for one in of(session, "left", result=result).decided] == [decided]


def test_an_op_that_is_held_by_a_pinned_one_of_its_group_says_so(session: Session) -> None:
    group = session.grouping.members(int(session.grouping.group_of[session.grouping.graph.index["join"]]))
    other = next(op for op in group if op != "join")
    (decision,) = of(session, "join", result={"pins": {other: "a"}}).decided
    assert (decision.by, other in decision.why) == ("group", True)


@pytest.mark.parametrize("known", [{"seconds": SECONDS, "cut": {"left": (1.0, 0.0)}}])
def test_the_segments_of_a_placement_count_and_moves_are_compared_with_it_planned_anew(session: Session) -> None:
    apart = session.grouping.group_of.astype(np.int32)
    found = explain(session, placed(session, [], segments=apart), ["left"])
    assert (found.simulated_s, found.replanned_s) == (15, 14)
    assert found.ops[0].segment_ops == ("left",)
    assert changes(found.ops[0]) == {"group": -4.0, "segment": -4.0}


@pytest.mark.parametrize("known", [{"seconds": SECONDS | {"left": (np.inf, 3.0)}, "cut": {}}])
def test_a_device_that_cannot_run_a_group_is_no_place_to_move_to(session: Session) -> None:
    one = of(session, "left")
    assert [decision.by for decision in one.decided] == ["device"]
    assert all(move.simulated_s is None and "cannot run" in str(move.refused) for move in one.moves)
    assert one.to_dict()["core_s"] == {"a": None, "b": 3.0}


@pytest.mark.parametrize("known", [{"seconds": SECONDS, "cut": {}, "room": (100.0, np.inf)}])
def test_a_device_without_room_for_its_weights_is_no_place_to_move_to(session: Session) -> None:
    one = of(session, "left", result={"chosen": {"placer": "heft"}})
    assert [decision.by for decision in one.decided] == ["memory"]
    assert all(move.change_s is None and "memory" in str(move.refused) for move in one.moves)
    found = diff(session, placed(session, ["left"]), placed(session, ["left", "right"]), names=("x", "y"))
    assert [(moved.ops, moved.refused) for moved in found.moved] == [(("right",), None)]


def test_an_unknown_op_is_a_usage_error_that_names_the_nearest(session: Session) -> None:
    with pytest.raises(UsageError, match=r"no op 'lefd'.*did you mean 'left'"):
        of(session, "lefd")


def test_a_difference_has_each_move_alone_and_all_together(session: Session) -> None:
    first, second = placed(session, ["left"]), placed(session, ["right"])
    found = diff(session, first, second, names=("x", "y"))
    assert found.simulated_s == found.replanned_s == (10, 11)
    assert found.change_s == 1
    assert {(one.ops, one.src, one.dst, one.change_s) for one in found.moved} == {
        (("left",), "b", "a", 4.0),
        (("right",), "a", "b", 4.0),
    }
    assert found.to_dict()["measured"] is None


def test_equal_placements_do_not_differ(session: Session) -> None:
    found = diff(session, placed(session, ["left"]), placed(session, ["left"]), names=("x", "y"))
    assert (found.moved, found.change_s, found.same_segments) == ((), 0, True)


def test_of_replicas_the_first_is_explained(session: Session) -> None:
    one = placed(session, [])
    found = explain(session, replace(one, replicas=(placed(session, list(SECONDS)),)), ["left"])
    assert (found.replicas, found.ops[0].device) == (2, "a")


def test_placements_that_cannot_be_told_apart_are_refused(session: Session) -> None:
    one = placed(session, ["left"])
    with pytest.raises(UsageError, match="y has replicas"):
        diff(session, one, replace(one, replicas=(one,)), names=("x", "y"))
    with pytest.raises(PlacementError, match="y: The placement belongs to another model"):
        diff(session, one, replace(one, graph_hash="another"), names=("x", "y"))


QUICK = {name: (1e-7 * a, 1e-7 * b) for name, (a, b) in SECONDS.items()}


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"seconds": QUICK, "cut": {}}, "bound by memory bandwidth: 768 B at 2.56 GB/s"),
        ({"seconds": SECONDS, "cut": {}}, "768 B at 256 B/s; b reads 1.00 GB/s"),
    ],
)
def test_a_group_whose_time_goes_to_its_bytes_is_bound_by_memory_bandwidth(session: Session, says: str) -> None:
    found = explain(session, placed(session, ["left"]), ["left"])
    one = found.ops[0].memory
    assert (one.device, one.bytes, one.bytes_per_s) == ("b", 3 * BYTES, 1e9)  # its weights, its input, its output
    assert one.bound == says.startswith("bound")
    assert [each.device for each in found.memory] == ["a", "b"]
    assert found.memory[1] == one  # the group is all that is there
    assert found.to_dict()["memory"][1] == found.to_dict()["ops"][0]["memory"]
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as shown:
        explanation(console, found)
    assert shown.get().count(says) == 2
