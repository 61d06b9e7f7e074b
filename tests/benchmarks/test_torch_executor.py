import pytest

from benchmarks import _levels, _torch_executor, executor
from benchmarks._harness import Args, Report, main
from placeit.backends.coarsen import Grouping
from placeit.backends.tensor_program import load
from placeit.cluster import Cluster, Device
from placeit.devices.host import allowed_cores
from placeit.errors import UsageError
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Costs, Segmenter
from placeit.session import OutputError

SMALL = {"chain-mm": {"size": 64}, "ffnn": {"batch": 64, "features": 8, "hidden": 64}}


def finest_plan(model, seconds=0.0):
    core = min(allowed_cores())
    cluster = Cluster(tuple(Device(name, kind="torch", runs_on=f"CPU@{core}", cores=(core,)) for name in "ab"))
    grouping = Grouping.singletons(model.graph)
    costs = Costs.free(len(model.graph), cluster)
    costs.core[:] = seconds
    return Segmenter(grouping, costs).plan([v % 2 for v in range(len(model.graph))], merge=False), grouping, cluster


def test_the_torch_backend_is_raced_against_one_device_plain_pytorch_and_levels(monkeypatch):
    if len(allowed_cores()) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    monkeypatch.setattr(_torch_executor, "QUICK", SMALL)
    report = Report()
    executor.run(Args(quick=True, backend="torch"), report)
    for name in SMALL:
        rows = {row["candidate"]: row for row in report.rows if "candidate" in row and row["graph"] == name}
        ours = {_torch_executor.ONE, _torch_executor.OURS, _torch_executor.FINE, _torch_executor.LEVELS}
        assert rows.keys() == ours | {_torch_executor.ONE_CORE, _torch_executor.BOTH_CORES}
        assert rows[_torch_executor.ONE]["ratio_to_one_device"] == 1
        assert all(rows[who]["output_error"] < 1e-4 and rows[who]["simulated_ms"] > 0 for who in ours)
        claims = {claim["name"].removeprefix(f"{name}: "): claim for claim in report.claims if claim["name"].startswith(name)}
        assert sum("over placeit:" in claim for claim in claims) == 2
        assert claims["host overhead per op launched, median"]["target"] == "<= 15"


@pytest.mark.parametrize("name", SMALL)
def test_level_by_level_computes_the_same(name):
    model = load(name, shards=3, **SMALL[name])
    plan, grouping, cluster = finest_plan(model)
    with Runtime(model, grouping, cluster) as runtime:
        levels = _levels.LevelByLevel(runtime, plan)
        for _ in range(2):
            assert levels.time() > 0
        assert OutputError.between(levels.outputs(), model.uncut(None, "f32")({})).max_rel < 1e-4


def test_no_segment_shares_a_level_with_one_that_it_reads_from():
    plan, _, _ = finest_plan(load("ffnn", shards=4, **SMALL["ffnn"]))
    level = {s: number for number, numbers in enumerate(_levels.levels(plan)) for s in numbers}
    assert sorted(level) == [s for s, segment in enumerate(plan.segments) if not segment.free]
    assert all(level[u] < level[v] for u, v in plan.problem.edges.tolist() if v in level)


def test_a_level_takes_as_long_as_its_busiest_device():
    plan, _, _ = finest_plan(load("ffnn", shards=4, **SMALL["ffnn"]), seconds=2.0)
    expected = 0.0
    for numbers in _levels.levels(plan):
        on = [plan.segments[s].device for s in numbers]
        expected += 2.0 * max(on.count(0), on.count(1))
    assert _levels.simulated(plan) == pytest.approx(expected)
    assert _levels.simulated(plan) >= plan.schedule.makespan


def test_a_tensor_graph_needs_the_torch_backend_and_an_onnx_model_the_other():
    with pytest.raises(UsageError, match=r"'ffnn' is a tensor graph.*--backend torch"):
        executor.run(Args(models=("ffnn",), backend="openvino"), Report())
    with pytest.raises(UsageError, match="'resnet50' is no tensor graph"):
        executor.run(Args(models=("resnet50",), backend="torch"), Report())


def test_the_first_backend_is_the_default(monkeypatch, capsys):
    asked = []
    main("some", lambda args, _: asked.append(args.backend), ["--json"], backends=("a", "b"))
    main("some", lambda args, _: asked.append(args.backend), ["--json", "--backend", "b"], backends=("a", "b"))
    assert asked == ["a", "b"]
    with pytest.raises(SystemExit):
        main("some", lambda args, _: None, ["--backend", "c"], backends=("a", "b"))
    assert "invalid choice: 'c'" in capsys.readouterr().err
