"""Costs that are measured: each placement gets its own time, whatever the machine does, and nothing that failed gets one."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit import MeasuredCost, place
from placeit.core import clock
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ExecutionError, FileError, NoRoomError, PlacementError, UsageError
from placeit.devices import kinds
from placeit.measuring.check import OutputDifference
from placeit.optimizer.races import Races
from placeit.planning.segments import Segmenter
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.workbench import Workbench
from placeit.workbench.reference import Reference
from tests.broken_executors import NO_ROOM, Wrapped
from tests.known_devices import EMPTY_S, Truth, truth
from tests.small_models import random_model
from tests.steady import STEADY

MODEL = random_model(3, 9)
OPS = [name for name, kind in zip(MODEL.graph.names, MODEL.graph.kinds, strict=True) if kind not in ("Parameter", "Result")]
DEVICES = 3


class Virtual(Wrapped):
    """An executor whose runs take the time that its devices say, and that counts how many are open."""

    open = most = 0

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self.closed = False
        Virtual.open += 1
        Virtual.most = max(Virtual.most, Virtual.open)

    def close(self) -> None:
        Virtual.open -= not self.closed
        self.closed = True
        self.executor.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def time(self) -> float:
        self.executor.time()
        spans = self.executor.spans()
        return float(max(span.finish for span in spans) - min(span.start for span in spans)) or EMPTY_S


def times(rng: np.random.Generator, scale: float) -> dict[str, tuple[float, ...]]:
    """Different for every op and device."""
    table = scale * rng.uniform(1, 8, (len(OPS), DEVICES))
    return dict(zip(OPS, map(tuple, table.tolist()), strict=True))


def virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions run on devices of known times, whose outputs are not checked."""
    original = Workbench.executor
    monkeypatch.setitem(kinds.KINDS, "known", "tests.known_devices:KIND")
    monkeypatch.setattr(Workbench, "executor", lambda *args, **options: Virtual(original(*args, **options)))
    monkeypatch.setattr(Reference, "check", lambda *_, **__: OutputDifference(0.0, 0.0))


def opened(cache: Cache | None, **fields: Any) -> Session:
    devices = (Device(f"d{d}", "known", Address(f"d{d}"), **fields) for d in range(DEVICES))
    return Session(MODEL, Cluster(tuple(devices)), cache=cache, policy=STEADY)


def known_truth() -> Truth:
    rng = np.random.default_rng(7)
    return Truth(times(rng, 1e-3), times(rng, 1e-4), lacking={2: {OPS[4]}})


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    virtual(monkeypatch)
    truth.append(known_truth())
    with opened(_costs(tmp_path_factory)) as session:
        session.profile(budget_s=60)
        Virtual.open = Virtual.most = 0
        yield session
    truth.clear()


def _costs(factory: pytest.TempPathFactory) -> Cache:
    """A cache of these tests' own: in others the same devices take other times."""
    return Cache(factory.getbasetemp() / "known-costs")


def placements(session: Session, count: int, seed: int = 0, devices: int = 2) -> NDArray[np.int32]:
    """Different ones, on the devices that can run everything, unless the third is asked for as well."""
    rng, groups = np.random.default_rng(seed), len(session.grouping.groups)
    rows: dict[bytes, NDArray[np.int32]] = {}
    while len(rows) < count:
        row = rng.integers(devices, size=groups).astype(np.int32)
        rows[row.tobytes()] = row
    return np.stack(list(rows.values()))


def true_seconds(session: Session, row: NDArray[np.int32]) -> float:
    """What a placement takes: devices of known times work one after the other."""
    total, names, plan = 0.0, session.grouping.graph.names, session.segmenter.plan(row)
    for segment in plan.programs:
        ops = [
            names[v] for v in np.flatnonzero(np.isin(session.grouping.group_of, segment.groups)) if names[v] in truth[0].core
        ]
        total += EMPTY_S + sum(truth[0].core[op][segment.device] for op in ops)
        total += truth[0].cut[ops[0]][segment.device] if len(ops) == 1 else 0.0
    return total


def test_each_placement_gets_its_own_time_however_fast_the_machine_is_meanwhile(session: Session) -> None:
    factors = (1.0, 2.0, 0.6, 1.6, 0.8)
    truth[0] = dataclasses.replace(truth[0], now=0.0, speed=lambda _, now: factors[int(now / 12) % 5])
    rows = placements(session, 60)
    rows = rows[np.unique([true_seconds(session, row) for row in rows], return_index=True)[1]]
    rows = np.random.default_rng(1).permutation(rows)[:40]
    cost = MeasuredCost(session, hopeless=None)
    values = np.concatenate([cost(rows[:13]), cost(rows[13:15]), cost(rows[15:])])
    true = np.array([true_seconds(session, row) for row in rows])
    assert len(np.unique(true)) == 40
    np.testing.assert_allclose(values / values[0], true / true[0], rtol=1e-3)
    raw = np.array([outcome.measured.median for outcome in cost.outcomes(rows) if outcome.measured is not None])
    assert max(raw / true) > 2 * min(raw / true)  # as the clock saw them
    assert cost.incumbent is not None
    assert cost.incumbent.value == min(outcome.value for outcome in cost.tried)
    assert Virtual.most == 8
    assert Virtual.open == 0


def test_seconds_per_request_of_many_in_flight_are_those_of_the_busiest_device(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def busy(executor: Any) -> dict[str, float]:
        executor.time()
        tracks = {span.track: 0.0 for span in executor.spans()}
        for span in executor.spans():
            tracks[span.track] += span.finish - span.start
        return tracks

    def times(self: Virtual, count: int, **_: object) -> float:
        asked.append(count)
        seconds = busy(self.executor).values()
        return sum(seconds) + (count - 1) * max(seconds)

    monkeypatch.setattr(Virtual, "times", times, raising=False)
    rows = placements(session, 8)
    cost = MeasuredCost(session, "throughput", hopeless=None)
    values = cost(rows)
    true, segmenter = [], Segmenter(session.grouping, session.costs, steady=True)
    for row in rows:
        with session.executor(segmenter.plan(row)) as executor:
            true.append(max(busy(executor).values()))
    np.testing.assert_allclose(values / values[0], np.array(true) / true[0], rtol=1e-3)
    assert max(asked) >= 4
    assert {one.source for one in cost.tried} == {"measured"}


def test_values_stay_what_they_are_however_often_something_better_is_found(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every incumbent was lucky; if the next one were measured by it, values would become lower and lower."""
    rng, exact = np.random.default_rng(3), Virtual.time
    monkeypatch.setattr(Virtual, "time", lambda self: exact(self) * rng.lognormal(0, 0.1))
    rows = placements(session, 1000)
    true = np.array([true_seconds(session, row) for row in rows])
    near = rng.permutation(np.argsort(true)[:120])
    cost = MeasuredCost(session, hopeless=None)
    over = np.concatenate([cost(rows[part]) / true[part] for part in np.split(near, 20)])
    assert np.median(over[-40:]) / np.median(over[:40]) == pytest.approx(1, abs=0.05)


def test_a_plan_is_measured_once_wherever_it_is_asked_about(session: Session) -> None:
    cost, rows = MeasuredCost(session, hopeless=None), placements(session, 6)
    first = cost(rows)
    runs, now = cost.samples, truth[0].now
    order = np.array([5, 0, 0, 3, 5, 1])
    np.testing.assert_array_equal(cost(rows[order]), first[order])
    assert cost(np.empty((0, rows.shape[1]), np.int32)).shape == (0,)
    assert (cost.samples, truth[0].now) == (runs, now)
    assert {outcome.source for outcome in cost.outcomes(rows)} == {"measured"}
    assert cost.compile_s > 0
    assert cost.run_s > 0


def test_placements_of_which_the_same_programs_run_share_a_value(session: Session) -> None:
    names = session.cluster.names
    links = {(a, b): Link(1e12, 1e-6, "measured") for a in names for b in names if a != b}
    cluster = Cluster(session.costs.cluster.devices, links)
    session._costs = dataclasses.replace(session.costs, cluster=cluster, dispatch=np.full(DEVICES, 1e-5))
    free = [g for g, kind in enumerate(session.grouping.groups.kinds) if kind == "Parameter"]
    rows = np.zeros((2, len(session.grouping.groups)), np.int32)
    rows[:, free[0]] = [1, 2]  # an input of the model: wherever it is, nothing computes it
    first, second = MeasuredCost(session, hopeless=None).outcomes(rows)
    assert first.value == second.value
    assert first.measured is second.measured
    assert [first.devices[free[0]], second.devices[free[0]]] == [1, 2]


def test_what_fails_is_nan_with_its_reason_and_what_does_not_fit_is_infinite(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = session.grouping.groups.names[3]
    (name,) = [v for v in OPS if v == op] or [OPS[3]]
    group = int(session.grouping.group_of[session.grouping.graph.index[name]])
    lacking = int(session.grouping.group_of[session.grouping.graph.index[OPS[4]]])
    truth[0] = dataclasses.replace(truth[0], broken=lambda op, d, _: (op, d) == (name, 1))
    rows = placements(session, 6)
    rows[:, group] = [1, 0, 0, 1, 0, 0]
    rows[4, lacking] = 2
    cost = MeasuredCost(session, hopeless=None)
    values = cost(rows)
    assert np.isnan(values).tolist() == [True, False, False, True, False, False]
    assert np.isinf(values).tolist() == [False, False, False, False, True, False]
    found = cost.outcomes(rows)
    assert [one.source for one in found] == ["failed", "measured", "measured", "failed", "infeasible", "measured"]
    assert f"{name} failed on d1" in str(found[0].reason)
    assert "cannot run on d2" in str(found[4].reason)
    assert {one.reason for one in cost.failures} == {found[0].reason, found[3].reason}
    runs = cost.samples
    cost(rows)
    assert cost.samples == runs  # what failed is not tried again

    original = Workbench.executor

    def full(self: Session, plan: Any, **options: Any) -> Any:
        if plan.group_devices[group] == 1:
            raise NoRoomError(NO_ROOM)
        return original(self, plan, **options)

    monkeypatch.setattr(Workbench, "executor", full)
    fresh = MeasuredCost(session, hopeless=None)
    assert np.isinf(fresh(rows)).tolist() == [True, False, False, True, True, False]
    assert fresh.outcomes(rows)[0].reason == NO_ROOM


def test_wrong_outputs_have_no_time(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = placements(session, 3)

    def check(self: Reference, executor: Any, *, after: bool = False) -> OutputDifference:
        plan = executor.plan
        return OutputDifference(1.0, 1.0) if np.array_equal(plan.group_devices, rows[1]) else OutputDifference(0.0, 0.0)

    monkeypatch.setattr(Reference, "check", check)
    found = MeasuredCost(session, hopeless=None).outcomes(rows)
    assert [one.source for one in found] == ["measured", "failed", "measured"]
    assert math.isnan(found[1].value)
    assert "outputs are wrong" in str(found[1].reason)


def test_what_looks_best_is_checked_after_its_runs_as_well(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    core = {
        op: (seconds[0], seconds[0] / (9 if v < 4 else 1 / 9), 1.0) for v, (op, seconds) in enumerate(truth[0].core.items())
    }
    truth[0] = dataclasses.replace(truth[0], core=core)
    best = np.zeros(len(session.grouping.groups), np.int32)
    best[session.grouping.group_of[[session.grouping.graph.index[op] for op in OPS[:4]]]] = 1

    def check(self: Reference, executor: Any, *, after: bool = False) -> OutputDifference:
        plan = executor.plan
        wrong = after and np.array_equal(plan.group_devices, best)
        return OutputDifference(1.0, 1.0) if wrong else OutputDifference(0.0, 0.0)

    monkeypatch.setattr(Reference, "check", check)
    cost = MeasuredCost(session, hopeless=None)
    (found,) = cost.outcomes(best[None])
    assert true_seconds(session, best) < 0.9 * min(true_seconds(session, np.full_like(best, d)) for d in range(2))
    assert (found.source, math.isnan(found.value)) == ("failed", True)
    assert cost.incumbent is not None
    assert len(set(cost.incumbent.devices.tolist())) == 1


def test_a_device_that_dies_drops_measurements_and_they_are_made_when_it_is_back(session: Session) -> None:
    rows = placements(session, 12)
    cost = MeasuredCost(session, hopeless=None)
    assert np.isfinite(cost(rows[:4])).all()
    truth[0] = dead = dataclasses.replace(truth[0], broken=lambda *_: True)
    found = cost.outcomes(rows)
    assert [one.source for one in found] == ["measured"] * 4 + ["dropped"] * 8
    assert np.isnan([one.value for one in found[4:]]).all()
    assert "failed in the same race" in str(found[5].reason)
    assert cost.failures == []
    truth[0] = dataclasses.replace(dead, broken=lambda *_: False)
    true = np.array([true_seconds(session, row) for row in rows])
    values = cost(rows)
    np.testing.assert_allclose(values / values[0], true / true[0], rtol=1e-6)


def test_a_device_that_becomes_slow_while_it_is_measured_drops_what_ran_there(session: Session) -> None:
    rows = placements(session, 3)
    slow: list[float] = [math.inf]
    truth[0] = dataclasses.replace(truth[0], speed=lambda d, now: 4.0 if d == 1 and now >= slow[0] else 1.0)

    def progress(what: str, share: float) -> None:
        if what.startswith("measuring") and 0.5 < share < 0.7:  # after the fourth of six rounds
            slow[0] = min(slow[0], truth[0].now)

    cost = MeasuredCost(session, hopeless=None, progress=progress)
    groups = rows.shape[1]
    rows[0] = 0
    rows[1] = 1
    first = [one.source for one in cost.outcomes(rows[:2])]
    anchor = cost.tried[0] if first[0] == "measured" else cost.tried[1]
    assert sorted(first) == ["dropped", "measured"]
    assert anchor.devices.tolist() in ([0] * groups, [1] * groups)
    (lost,) = [one for one in cost.outcomes(rows[:2]) if one.value != anchor.value]
    assert lost.source == "measured"  # it is asked about again, and is slow from the first round on


def test_what_is_hopeless_is_not_run_and_says_so(session: Session) -> None:
    slower = np.array([1.0, 30.0, 1.0])
    core = {op: tuple(slower * seconds) for op, seconds in truth[0].core.items()}
    truth[0] = dataclasses.replace(truth[0], core=core)
    session._costs = dataclasses.replace(session.costs, core=session.costs.core * slower)
    rows = placements(session, 8)
    rows[0] = 0
    rows[1] = 1
    cost = MeasuredCost(session)
    found = cost.outcomes(rows)
    assert found[0].source == "measured"
    assert found[1].source == "estimated"
    assert found[1].measured is None
    assert found[1].value > 5 * found[0].value
    assert "was not run" in str(found[1].reason)
    assert MeasuredCost(session, hopeless=None).outcomes(rows[:2])[1].source == "measured"


def test_measured_segments_calibrate_the_costs_whatever_the_speed_of_the_machine(session: Session) -> None:
    rows, found = placements(session, 20), []
    for later in (1.0, 3.0):
        cost = MeasuredCost(session, hopeless=None)
        for factor, some in ((1.0, rows[:7]), (later, rows[7:])):
            speeds = (factor, 2 * factor, factor)
            truth[0] = dataclasses.replace(truth[0], speed=lambda device, _, speeds=speeds: speeds[device])
            cost(some)
        found.append(cost.calibrated().core)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    computing = session.costs.core[:, 0] > 0
    factors = found[0][computing, :2] / session.costs.core[computing, :2]
    assert np.median(factors[:, 1] / factors[:, 0]) == pytest.approx(2.0, rel=0.2)


def test_the_best_are_raced_once_more_and_the_best_placement_is_the_answer(session: Session) -> None:
    rows = placements(session, 12)
    cost = MeasuredCost(session, hopeless=None)
    with pytest.raises(ExecutionError, match="Nothing has been measured"):
        cost.winner()
    cost(rows)
    true = {outcome.value: true_seconds(session, outcome.devices) for outcome in cost.tried}
    runs = cost.samples
    best = cost.winner(few=3, rounds=8)
    assert cost.samples == runs + 24
    assert true_seconds(session, best.outcome.devices) == min(true.values())
    assert best.ratio is not None
    assert best.ratio.ci_low <= best.ratio.ratio <= best.ratio.ci_high
    assert best.ratio.ratio == pytest.approx(min(true.values()) / sorted(true.values())[1], rel=1e-6)
    assert len(best.measured.samples) == 8
    assert best.measured.ci_low <= best.measured.median <= best.measured.ci_high < math.inf
    devices = np.array([session.cluster.names.index(name) for name in best.placement.as_dict().values()])
    assert devices.tolist() == best.outcome.devices[session.grouping.group_of].tolist()


def test_the_reasons_are_told_if_the_best_cannot_be_raced_once_more(session: Session) -> None:
    cost = MeasuredCost(session, hopeless=None)
    cost(placements(session, 3))
    truth[0] = dataclasses.replace(truth[0], broken=lambda *_: True)
    with pytest.raises(ExecutionError, match=r"could be run once more\. .+failed on d[01]\.$"):
        cost.winner(rounds=8)


def test_placers_search_by_measured_costs_as_by_simulated_ones(session: Session) -> None:
    problem, cost = session.segmenter.problem(), MeasuredCost(session, hopeless=None)
    answer = place(problem, "local-search:batch=6", evaluations=40, cost=cost).devices
    assert 4 < len(cost.tried) <= 40
    (found,) = cost.outcomes(answer[None])
    assert found.source == "measured"
    assert found.value == min(one.value for one in cost.tried)
    true = [true_seconds(session, one.devices) for one in cost.tried]
    assert true_seconds(session, answer) == pytest.approx(min(true), rel=1e-9)


def test_the_deadline_is_kept_and_what_was_not_measured_says_so(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = placements(session, 30)
    assert [one.source for one in MeasuredCost(session, deadline=clock.now()).outcomes(rows[:2])] == ["dropped"] * 2
    end = truth[0].now + 3.0
    monkeypatch.setattr(Races, "left", lambda _: end - truth[0].now)
    cost = MeasuredCost(session, hopeless=None)
    found = cost.outcomes(rows)
    sources = {one.source for one in found}
    assert sources == {"measured", "dropped"}
    assert all(math.isnan(one.value) and "no time left" in str(one.reason) for one in found if one.source == "dropped")
    assert np.isfinite([one.value for one in found if one.source == "measured"]).all()


def test_the_deadline_is_exceeded_by_a_plan_and_its_rival_at_most(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, begin = placements(session, 30), truth[0].now
    slowest = max(true_seconds(session, row) for row in rows)
    monkeypatch.setattr(Races, "left", lambda races: races.deadline - truth[0].now)
    cost = MeasuredCost(session, hopeless=None, deadline=begin + slowest)
    assert np.isfinite(cost(rows)).sum() == 1
    assert truth[0].now <= begin + 2 * 6 * slowest  # six runs that count, by the clock of these devices
    late = truth[0].now
    assert np.isnan(cost(rows)).sum() == 29
    assert truth[0].now == late
    cost.deadline = math.inf
    assert np.isfinite(cost(rows)).all()


def test_an_interrupt_loses_nothing_that_was_written(session: Session, tmp_path: Path) -> None:
    batches = 0

    def interrupt(what: str, share: float) -> None:
        nonlocal batches
        batches += what.startswith("measuring") and share == 1.0
        if batches == 3:
            raise KeyboardInterrupt

    rows = placements(session, 30)
    cost = MeasuredCost(session, hopeless=None, journal=tmp_path / "j.jsonl", progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        cost(rows)
    written = {one.devices.tobytes(): one.value for one in cost.tried if one.source == "measured"}
    assert written
    assert Virtual.open == 0
    again = MeasuredCost(session, hopeless=None, journal=tmp_path / "j.jsonl")
    assert {one.devices.tobytes(): one.value for one in again.tried} == written
    true = np.array([true_seconds(session, row) for row in rows])
    for one in (again, cost):  # both go on
        batches = 4
        values = one(rows)
        np.testing.assert_allclose(values / values[0], true / true[0], rtol=1e-6)


def test_a_journal_is_taken_over_and_nothing_in_it_is_run_again(session: Session, tmp_path: Path) -> None:
    rows = placements(session, 9)
    first = MeasuredCost(session, hopeless=None, journal=tmp_path / "j.jsonl")
    values = first(rows)
    second = MeasuredCost(session, hopeless=None, journal=tmp_path / "j.jsonl")
    now = truth[0].now
    np.testing.assert_array_equal(second(rows), values)
    assert (second.samples, truth[0].now) == (0, now)
    np.testing.assert_allclose(second.calibrated().core, first.calibrated().core)
    truth[0] = dataclasses.replace(truth[0], speed=lambda *_: 3.0)  # on another day
    more = placements(session, 6, seed=5)
    true = [true_seconds(session, row) for row in (rows[0], *more)]
    np.testing.assert_allclose(second(more) / values[0], np.array(true[1:]) / true[0], rtol=1e-6)
    with pytest.raises(UsageError, match="objective is 'latency'"):
        MeasuredCost(session, "total-cost", journal=tmp_path / "j.jsonl")
    with pytest.raises(FileError):
        MeasuredCost(session, journal=tmp_path)


def test_a_process_that_is_killed_loses_at_most_the_batch_that_it_was_at(session: Session, tmp_path: Path) -> None:
    journal, costs, known = (str(tmp_path / name) for name in ("j.jsonl", "costs", "known"))
    Path(costs).write_bytes(pickle.dumps(session.costs))  # of which plans are made, so that they are the same ones
    said: dict[bytes, float] = {}

    def hear(line: str) -> None:
        row, value = line.split()
        said[bytes.fromhex(row)] = float(value)

    with _another_process("measure_for_ever", journal, costs) as child:
        assert child.stdout is not None
        for line in child.stdout:
            hear(line)
            if len(said) == 12:
                time.sleep(float(np.random.default_rng().uniform(0, 0.2)))
                break
        os.kill(child.pid, signal.SIGKILL)
        for line in child.stdout:  # what it had said before it ended, but for a line that is not whole
            if line.endswith("\n"):
                hear(line)
    Path(known).write_bytes(pickle.dumps(said))
    with _another_process("value_again", journal, costs, known) as child:
        assert child.stdout is not None
        assert child.stdout.read() == "the same, of 0 samples\n"


def _another_process(function: str, *args: str) -> subprocess.Popen[str]:
    """Run a function of this module in a process that has done nothing before: OpenVINO numbers what it makes."""
    code = f"import sys; from tests.optimizer import test_measured_cost as t; t.{function}(*sys.argv[1:])"
    folders = [str(Path(__file__).parents[2]), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.Popen([sys.executable, "-c", code, *args], env=environment, stdout=subprocess.PIPE, encoding="utf-8")


@contextlib.contextmanager
def _in_another_process(costs: str) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        virtual(patch)
        truth.append(known_truth())
        with opened(None) as session:
            session.recall()  # there is nothing to recall, but groups are split as they are for profiling
            session._costs = pickle.loads(Path(costs).read_bytes())
            yield session


def measure_for_ever(journal: str, costs: str) -> None:
    """Say what each of many placements takes, after it was measured; for a process that is to be killed."""
    with _in_another_process(costs) as session:
        cost = MeasuredCost(session, hopeless=None, journal=journal)
        for seed in range(10_000):
            rows = placements(session, 3, seed)
            for row, value in zip(rows, cost(rows), strict=True):
                sys.stdout.write(f"{row.tobytes().hex()} {float(value)!r}\n")
                sys.stdout.flush()


def value_again(journal: str, costs: str, known: str) -> None:
    """Say whether the journal has what was said of placements, and how much had to be measured."""
    said = pickle.loads(Path(known).read_bytes())
    with _in_another_process(costs) as session:
        cost = MeasuredCost(session, hopeless=None, journal=journal)
        values = cost(np.stack([np.frombuffer(row, np.int32) for row in said]))
        same = np.allclose(values, list(said.values()), rtol=1e-12, atol=0)
        sys.stdout.write(f"{'the same' if same else 'others'}, of {cost.samples} samples\n")


@pytest.mark.parametrize("what", ["described", "not profiled", "length", "device", "rounds", "objective"])
def test_what_makes_no_sense_is_refused(session: Session, what: str, cache: Cache) -> None:
    if what == "described":
        cluster = Cluster((Device("x", "described", flops_per_s=1e9, bytes_per_s=1e12),))
        with Session(MODEL, cluster, cache=cache, policy=STEADY) as other, pytest.raises(UsageError, match="only described"):
            MeasuredCost(other)
    elif what == "not profiled":
        with opened(None) as other, pytest.raises(UsageError, match="call the session's profile"):
            MeasuredCost(other)
    elif what == "length":
        with pytest.raises(PlacementError, match="device numbers; got shape"):
            MeasuredCost(session)(np.zeros((1, 2), np.int32))
    elif what == "device":
        with pytest.raises(PlacementError, match=r"0..2; got 0..3"):
            MeasuredCost(session)(np.arange(len(session.grouping.groups))[None] % 4)
    elif what == "rounds":
        with pytest.raises(UsageError, match="'rounds' is at least 1"):
            MeasuredCost(session, rounds=0)
    else:
        with pytest.raises(UsageError, match="'speed' is not known"):
            MeasuredCost(session, "speed")
