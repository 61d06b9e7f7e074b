"""Benchmarks of nodes on the least work, on an emulated network where there can be one; and what the rounds of one claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import _edge_graphs, _edge_models, _fleet_real, churn
from benchmarks._gpus import with_gpu
from benchmarks._harness import Args, Report
from benchmarks._network import Network, reason_why_no_quotas, reason_why_not
from placeit.devices.nodes import local
from placeit.session import Session
from tests.emulators import UnavailableError
from tests.small_models import inception_like

WAYS = [_edge_graphs.OURS, "Ray's references", "Ray's compiled graph"]
HOWS = [churn.KILLED, churn.STOPPED, churn.CUT, churn.GONE]
WELL: dict[str, Any] = {
    "how": churn.CUT,
    **dict.fromkeys(("lost", "answered_twice", "wrong"), 0),
    **dict.fromkeys(churn.PHASES, 0.5),
    **dict.fromkeys(("before_ms", "after_ms", "again_ms"), 20.0),
}
UNANSWERED = WELL | dict.fromkeys(("silent_s", "decided_s", "compiled_s", "first_answer_s", "recovered_s", "used_again_s"))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ((WELL, WELL, WELL | {"decided_s": 0.9}), {"decision, median": (0.5, None), "decision, worst": (0.9, True)}),
        (
            (WELL, UNANSWERED | {"how": churn.KILLED, "next_answer_s": churn.ANSWER_S}),
            {
                "rounds without a replacement": (1, False),
                "decision, worst": (0.5, True),
                "from a failure to the next answer, worst": (churn.ANSWER_S, False),
            },
        ),
        ((UNANSWERED,), {"decision, worst": (None, None)}),
        (
            (WELL, WELL | {"used_again_s": None}, WELL | {"how": churn.STOPPED, "used_again_s": None}),
            {"nodes that came back and were not used again": (1, False)},
        ),
        (
            (WELL, {"how": churn.CUT, "failed": "Ray has not noticed what became of edge1 for 60 s."}),
            {
                "rounds that ended by an error": (1, False),
                "rounds without a replacement": (0, True),
                "decision, worst": (0.5, True),
            },
        ),
        *(((WELL, WELL | {what.replace(" ", "_"): 1}), {f"requests {what}": (1, False)}) for what in ("lost", "wrong")),
    ],
)
def test_rounds_hold_if_every_request_is_answered_and_every_node_replaced(rows: Any, told: Any) -> None:
    report = Report()
    for row in rows:
        report.row(**row)
    churn.claim(report)
    found = {str(one["name"]): (one["value"], one["holds"]) for one in report.claims}
    assert {name: found[name] for name in told} == told
    broken = {name for name, (_, holds) in found.items() if holds is False}
    assert broken <= {name for name, (_, holds) in told.items() if holds is False} or rows == (UNANSWERED,)


def test_every_node_fails_in_every_way() -> None:
    todo = churn.rounds(churn.ROUNDS, churn.NODES[1:], HOWS)
    assert (len(todo), len(set(todo))) == (100, 8)
    assert {how for _, how in todo[: churn.QUICK]} == set(HOWS)


def with_gpu_or_skip() -> None:
    try:
        with_gpu(local.Place())
    except UnavailableError as error:
        pytest.skip(f"no emulated GPU: {error}")


@pytest.fixture
def ray_command(command: Callable[..., Any]) -> Callable[..., Any]:
    pytest.importorskip("ray")
    return command


@pytest.mark.nightly
@pytest.mark.timeout(900, method="thread")
@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_churn_replaces_a_node_and_tells_whether_it_is_used_again(ray_command: Callable[..., Any], device: str) -> None:
    if device == "GPU":
        with_gpu_or_skip()
    how = churn.KILLED if reason_why_not() else churn.CUT
    least = {"rounds": lambda *_: [("edge1", how)], "ANSWER_S": 240.0, "BACK_S": 480.0}
    result = ray_command("churn", f"--quick --backend {device}", least)
    (row,) = result.rows
    assert row.get("failed") is None
    assert [row[what] for what in ("how", "device", "lost", "answered_twice", "wrong")] == [how, device, 0, 0, 0]
    assert row["requests"] > 0
    assert None not in [row[name] for name in churn.PHASES if name != "used_again_s"]
    unused = result.claims["nodes that came back and were not used again"]["value"]
    assert unused == (None if how == churn.KILLED else int(row["used_again_s"] is None))  # on a busy machine it may not pay


@pytest.mark.nightly
@pytest.mark.timeout(600, method="thread")
def test_adaptivity_places_a_graph_anew_in_each_way(ray_command: Callable[..., Any]) -> None:
    result = ray_command("adaptivity", "--quick", {"OPS": 8})
    ways = ["HEFT", "GiPH", "search", "server"]
    slow, lost = [("slow", way) for way in [*ways, "nothing"]], [("lost", way) for way in ways]
    assert [(row["node"], row["placed_by"]) for row in result.rows] == slow + lost
    assert all(row["predicted_ms"] > 0 and row["latency_ms"] > 0 for row in result.rows)
    assert {"latency with a slow node, nothing over HEFT", "latency with a lost node, server over HEFT"} <= result.claims.keys()


def small_graphs(args: Args, ray: local.LocalCluster, made: Network | None) -> Report:
    """Graphs of three hops; in whatever process it is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_edge_graphs, "HOPS", {False: 3, True: 3})
        patch.setattr(_edge_graphs, "SIZES", (1000,))
        return _edge_graphs.graphs(args, ray, made)


def small_model(_: str, args: Args, ray: local.LocalCluster, made: Network) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_edge_models, "load_model", lambda _: inception_like())
        patch.setattr(_edge_models, "_STEPS", 100)
        patch.setattr(Session, "profile", lambda session, real=Session.profile, **_: real(session, budget_s=1.0))
        return _edge_models.on_nodes("small", args, ray, made)


@pytest.mark.nightly
@pytest.mark.timeout(600, method="thread")
def test_edge_races_graphs_and_models_and_tells_what_crosses_a_network(ray_command: Callable[..., Any]) -> None:
    result = ray_command("edge", "--quick", {"graphs": small_graphs, "on_nodes": small_model})
    graphs = [row for row in result.rows if "graph" in row]
    both = [(graph, way) for graph in ("chain", "diamonds") for way in WAYS]
    assert [(row["graph"], row["what"]) for row in graphs] == both * (1 if reason_why_not() else 2)
    for row in graphs:
        assert row["median_ms"] >= row["critical_path_ms"] > 0  # no segment sleeps for less than it should
    if not reason_why_not():
        assert all(row["bytes_that_cross_kb"] >= row["tensors_that_cross_kb"] > 0 for row in graphs[len(both) :])
    if not reason_why_no_quotas():
        models = {row["what"].partition("/")[0]: row for row in result.rows if "over_best_node" in row}
        assert list(models) == [*_edge_graphs.NODES, "split", "split, Ray's references"]
        assert all(models[what]["bytes_that_cross_kb"] > 0 for what in list(models)[1:])
        assert result.claims["models that failed"]["holds"]


@pytest.mark.nightly
@pytest.mark.timeout(600, method="thread")
def test_a_fleet_is_planned_and_run_on_nodes_with_quotas(ray_command: Callable[..., Any]) -> None:
    if why := reason_why_no_quotas():
        pytest.skip(why)
    result = ray_command("fleet", "--part real --quick", {})
    assert [row["model"] for row in result.rows] == [*_fleet_real.MODELS]
    for row in result.rows:
        assert row["requests"] > 0
        assert min(row[f"{how}_p{percent}_ms"] for how in ("predicted", "measured") for percent in (50, 95)) > 0
        assert 0 <= row["measured_within_limit"] <= 1
    assert "three nodes, four models: median error of the predicted p95" in result.claims


@pytest.mark.nightly
@pytest.mark.timeout(600, method="thread")
def test_nodes_of_kinds_runs_each_model_on_all_devices_with_the_plain_outputs(ray_command: Callable[..., Any]) -> None:
    with_gpu_or_skip()
    least = {
        "_edge_models:_STEPS": 20,
        "QUICK_PROFILE_S": 2.0,
        "build_model": lambda _: torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).eval(),
        "example_inputs": lambda _: {"input": torch.randn(1, 64)},
    }
    result = ray_command("nodes_of_kinds", "--quick", least)
    assert [row["model"] for row in result.rows] == ["inception_v3, ONNX file", "inception_v3, PyTorch module"]
    used = [claim["value"] for name, claim in result.claims.items() if "devices that run a part" in name]
    assert used == [3, 2]
    assert all(claim["holds"] for name, claim in result.claims.items() if "largest output error" in name)
    assert all(row["predicted_ms"] > 0 and row["median_ms"] > 0 for row in result.rows)
