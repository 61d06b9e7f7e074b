import pytest

from benchmarks import _levels, _torch_executor, executor
from benchmarks._dispatch import gaps
from benchmarks._harness import Args, Report, main
from placeit.backends.torch.tensor_program import tensor_model
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import UsageError
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.check import OutputDifference
from placeit.runtime.runtime import Runtime
from placeit.session import Session

SMALL = {"chain-mm": {"size": 64}, "ffnn": {"batch": 64, "features": 8, "hidden": 64}}


def finest_plan(model, seconds=0.0):
    cores = min(allowed_cores()), max(allowed_cores())
    cluster = Cluster(tuple(Device(name, "torch", Address("CPU", (core,))) for name, core in zip("ab", cores, strict=True)))
    grouping = Grouping.singletons(model.graph)
    costs = Costs.zero(len(model.graph), cluster)
    costs.core[:] = seconds
    return Segmenter(grouping, costs).plan([v % 2 for v in range(len(model.graph))], merge=False), grouping, cluster


@pytest.mark.slow
def test_the_torch_backend_is_raced_against_one_device_plain_pytorch_and_levels(monkeypatch):
    if len(allowed_cores()) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    monkeypatch.setattr(_torch_executor, "QUICK", SMALL)
    report = Report()
    executor.run(Args(quick=True, models=("ffnn",), backend="torch"), report)
    plain = {_torch_executor.ONE_CORE, _torch_executor.SHARDS}
    ours = {_torch_executor.ONE, _torch_executor.OURS, _torch_executor.FINE, _torch_executor.LEVELS}
    claims = {claim["name"]: claim for claim in report.claims}
    for where in (_torch_executor.EQUAL, _torch_executor.UNEQUAL):
        rows = {row["candidate"]: row for row in report.rows if row.get("devices") == where and "candidate" in row}
        assert rows.keys() - {_torch_executor.BOTH_CORES} == ours | plain
        assert (_torch_executor.BOTH_CORES in rows) == (where == _torch_executor.EQUAL)
        assert rows[_torch_executor.ONE]["ratio_to_one_device"] == 1
        assert all(rows[who]["output_error"] < 1e-4 and rows[who]["simulated_ms"] > 0 for who in ours)
        (margin,) = [row for row in report.rows if row.get("devices") == where and "simulated_margin" in row]
        assert 0 < margin["margin_low"] <= margin["levels_over_placeit"] <= margin["margin_high"]
        error = claims[f"ffnn, {where}: the same, simulated: error"]
        assert error["target"] == "<= 10"
        assert error["value"] == pytest.approx(abs(margin["simulated_margin"] / margin["levels_over_placeit"] - 1) * 100)
    overheads = [claim for name, claim in claims.items() if "host overhead per op launched" in name]
    assert [claim["target"] for claim in overheads] == ["<= 15", None, None]
    assert all(row["any_python_slower"] > 0 for row in report.rows if "woken_by_other_device_us" in row)


def test_gaps_are_between_segments_or_between_the_kernels_of_their_ops():
    model, times = _torch_executor.noting(tensor_model("ffnn", shards=3, **SMALL["ffnn"]))
    core = min(allowed_cores())
    with Session(model, f"CPU@{core}", cache=None) as session:
        session.profile(budget_s=0.1)
        plan = session.segmenter.plan([0] * len(session.grouping.groups), merge=False)
        between_segments, _ = gaps(session, plan, runs=5)
        between_kernels, _ = gaps(session, plan, runs=5, ops=times)
    assert times.keys() == {op.name for op in model.program.ops}
    assert len(between_kernels) == len(between_segments) == 5 * (len(plan.programs) - 1)


@pytest.mark.parametrize("name", SMALL)
def test_level_by_level_computes_the_same(name):
    model = tensor_model(name, shards=3, **SMALL[name])
    plan, grouping, cluster = finest_plan(model)
    with Runtime(model, grouping, cluster) as runtime:
        levels = _levels.LevelByLevel(runtime, plan)
        for _ in range(2):
            assert levels.time() > 0
        assert OutputDifference.between(levels.outputs(), model.reference(None, "f32")({})).max_rel < 1e-4


def test_no_segment_shares_a_level_with_one_that_it_reads_from():
    plan, _, _ = finest_plan(tensor_model("ffnn", shards=4, **SMALL["ffnn"]))
    level = {s: number for number, numbers in enumerate(_levels.levels(plan)) for s in numbers}
    assert sorted(level) == [s for s, segment in enumerate(plan.segments) if not segment.passthrough]
    assert all(level[u] < level[v] for u, v in plan.problem.edges.tolist() if v in level)


def test_a_level_takes_as_long_as_its_busiest_device_and_what_the_host_adds():
    if len(allowed_cores()) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    plan, _, _ = finest_plan(tensor_model("ffnn", shards=4, **SMALL["ffnn"]), seconds=2.0)
    expected = 0.0
    for numbers in _levels.levels(plan):
        on = [plan.segments[s].device for s in numbers]
        expected += 2.0 * max(on.count(0), on.count(1))
    assert _levels.simulated(plan, 0.1, 0.1) == pytest.approx(expected)
    assert _levels.simulated(plan, 0.1, 0.1) >= plan.schedule.makespan
    assert _levels.simulated(plan, 0.1, 0.5) == pytest.approx(expected + 0.4 * len(_levels.levels(plan)))


def test_levels_that_compute_nothing_have_an_op_on_every_device():
    core = min(allowed_cores())
    cluster = Cluster(tuple(Device(name, kind="torch", address=Address("CPU", (core,))) for name in "abc"))
    with _levels.empty_levels(cluster) as empty:
        assert empty.time() > 0
        assert [len(output) for output in empty.outputs().values()] == [1, 1, 1]
        assert empty.devices_by_level == [[0, 1, 2]] * _levels.EMPTY_LEVELS


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
