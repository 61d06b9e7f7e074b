import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.core.cluster import Device
from placeit.core.errors import ExecutionError
from placeit.core.placement import Placement
from placeit.devices.kinds import kind_of
from placeit.session import Session
from placeit.workbench import Workbench
from tests.broken_executors import NO_ROOM, broken, devices_of

pytestmark = pytest.mark.usefixtures("steady")

DESCRIBED = """
devices:
  a: {catalog: jetson-orin-nano}
  b: {catalog: raspberry-pi-5}
links:
  - {between: [a, b], bandwidth: 1 Gbit/s, latency: 1 ms}
"""


def test_json_says_what_was_chosen_of_what(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    output = tmp_path / "answer.json"
    result = cli(
        "optimize", tiny, "-d", ",".join(cores), "--budget", 3, "--placer", "heft", "--seed", 1, "-o", output, "--json"
    )
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["graph"] == {"ops": 8, "edges": 8, "groups": 4}
    assert data["objective"] == "latency"
    assert data["budget"]["asked_s"] == 3
    assert data["placement_file"] == str(output)
    names = [candidate["name"] for candidate in data["candidates"]]
    assert set(cores) <= set(names)
    assert data["chosen"]["name"] in names
    for candidate in data["candidates"]:
        assert sum(candidate["devices"].values()) == 8
    assert data["output_error"]["max_rel"] < 1e-5
    assert len(Placement.load(output)) == 8


def test_the_table_says_what_was_chosen_and_why(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    result = cli("optimize", tiny, "-d", ",".join(cores), "--budget", 2, "--placer", "heft")
    assert result.exit_code == 0, result.stderr
    for core in cores:
        assert f"speed-up over {core}" in result.stdout
    for fact in ("chosen ", "why ", "simulator ", "mean error", "budget ", "placement  "):
        assert fact in result.stdout
    assert tiny.with_name("tiny.onnx.placement.json").exists()


@pytest.mark.two_cores
def test_what_failed_is_in_the_table_with_its_reason(
    cli: Any, tiny: Path, cores: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "opening", lambda plan: devices_of(plan) == {1})
    result = cli("optimize", tiny, "-d", ",".join(cores), "--budget", 1, "--placer", "heft")
    assert result.exit_code == 0, result.stderr
    listed = result.stdout.partition("\nfailed\n")[2]
    assert f"\n{cores[1]} (single) " in listed
    assert f"\n{cores[1]} (single): {NO_ROOM}\n" in listed


def test_the_answer_runs(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    assert cli("optimize", tiny, "-d", ",".join(cores), "--budget", 1, "--placer", "heft", "-q").exit_code == 0
    result = cli("run", tiny, "-p", tiny.with_name("tiny.onnx.placement.json"), "--runs", 2)
    assert result.exit_code == 0, result.stderr


def test_with_described_devices_nothing_is_said_to_be_measured(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(DESCRIBED)
    result = cli("optimize", tiny, "-d", cluster, "--budget", 1, "--placer", "heft", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert all(candidate["measured_s"] is None for candidate in data["candidates"])
    assert data["speedup"] is None
    assert data["simulator"] == {"mape": None, "pearson": None, "spearman": None}


def test_energy_is_named_as_modelled_and_total_cost_as_what_it_sums_up(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(DESCRIBED)  # its devices have their power from the catalogue
    for objective, unit, said in (
        ("energy", "J", "joules by a power model"),
        ("total-cost", "s", "busy time of all devices and links"),
    ):
        options = ("-d", cluster, "--budget", 1, "--placer", "heft", "--objective", objective)
        result = cli("optimize", tiny, *options)
        assert result.exit_code == 0, result.stderr
        assert said in result.stdout
        assert ("modelled; no meter for" in result.stdout) == (objective == "energy")
        data = json.loads(cli("optimize", tiny, *options, "--json").stdout)
        assert (data["objective"], data["objective_unit"]) == (objective, unit)
        for candidate in data["candidates"]:
            assert candidate["simulated_value"] > 0
            assert candidate["value_from_runs"] is None
            assert candidate["value_ci"] == [None, None]
        quiet = cli("optimize", tiny, *options, "--quiet").stdout
        assert re.fullmatch(rf"\S+: [\d.]+ [mun]?{unit} \(simulated\), \S+tiny.onnx.placement.json\n", quiet)


def test_each_point_of_a_front_is_a_placement_beside_the_answer(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster, file = tmp_path / "cluster.yaml", tmp_path / "best.json"
    cluster.write_text(DESCRIBED)
    options = ("-d", cluster, "--budget", 1, "--placer", "heft", "--pareto", "-o", file)
    result = cli("optimize", tiny, *options, "--json", "--record", tmp_path / "run.json")
    assert result.exit_code == 0, result.stderr
    points = json.loads(result.stdout)["pareto"]
    assert [point["placement_file"] for point in points] == [
        str(tmp_path / f"best.point-{number}.json") for number in range(1, len(points) + 1)
    ]
    for point in points:
        placement = Placement.load(point["placement_file"])
        assert placement.counts() == point["devices"]
        assert (point["latency_from"], point["energy_from"]) == ("simulated", "simulated")
    assert json.loads((tmp_path / "run.json").read_text())["search"]["pareto"] == points
    shown = cli("optimize", tiny, *options)
    assert shown.exit_code == 0, shown.stderr
    assert "Pareto front" in shown.stdout
    assert "best.point-1.json" in shown.stdout


def test_the_objective_by_measured_times_stands_beside_the_latency(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    result = cli("optimize", tiny, "-d", ",".join(cores), "--budget", 2, "--placer", "heft", "--objective", "total-cost")
    assert result.exit_code == 0, result.stderr
    assert "total-cost" in result.stdout


@pytest.mark.two_cores
def test_ctrl_c_keeps_the_best_placement_and_exits_with_130(
    cli: Any, tiny: Path, cores: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placeit.optimizer.proposing.ask", interrupt)
    options = ("--objective", "total-cost")  # for latency, it may be that no placer is asked
    result = cli("optimize", tiny, "-d", ",".join(cores), "--budget", 5, "--placer", "heft", *options)
    assert result.exit_code == 130
    assert "ended by Ctrl-C" in result.stdout
    assert len(Placement.load(tiny.with_name("tiny.onnx.placement.json"))) == 8


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--placer", "simulated"], "simulated"),
        (["--placer", "annealing:speed=3"], "speed"),
        (["--objective", "speed"], "latency, throughput, total-cost, energy"),
        (["--objective", "energy"], "'busy_power' and 'idle_power'"),
        (["--pareto"], "'busy_power' and 'idle_power'"),
        (["--pareto", "--objective", "throughput"], "choose another objective"),
        (["--budget", "0"], "budget"),
        (["--budget", "nan"], "budget"),
        (["--input-shape", "1,3,16,16"], "--input-shape"),
        (["--input-shape", "x:1,3,16,16", "--input-shape", "x:2,3,16,16"], "twice"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(cli: Any, tiny: Path, options: list[str], word: str) -> None:
    result = cli("optimize", tiny, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert word in result.stderr
    assert not list(Path().iterdir())


def test_an_unknown_objective_is_said_before_the_model_is_read(cli: Any) -> None:
    result = cli("optimize", "nothing.onnx", "--objective", "speed")
    assert result.exit_code == 2
    assert "latency, throughput, total-cost, energy" in result.stderr


@pytest.mark.two_cores
def test_the_whole_cpu_is_a_row_and_its_placement_runs_and_compares(
    cli: Any,
    tiny: Path,
    cores: Sequence[str],
    singles: Sequence[str],
    place_on: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices, file, plain = (
        ",".join(cores),
        tmp_path / "plain.json",
        next(name for name in singles if name not in cores and not name.startswith("ort:")),
    )
    with monkeypatch.context() as patch:
        broken(patch, "opening", lambda plan: plan.problem.device_names != (plain,))
        result = cli("optimize", tiny, "-d", devices, "--budget", 1, "--placer", "heft", "-o", file, "--compare-precisions")
    assert result.exit_code == 0, result.stderr
    assert f"{plain} is a plain device: all core sets together" in result.stdout
    assert "precisions " in result.stdout
    assert set(Placement.load(file).as_dict().values()) == {plain}
    for options in ((), ("-d", devices)):
        ran = cli("run", tiny, "-p", file, "--runs", 2, *options, "--json")
        assert ran.exit_code == 0, ran.stderr
        assert json.loads(ran.stdout)["utilization"].keys() == {plain}
        compared = cli("compare", tiny, "-p", file, "-p", place_on(cores), "--runs", 6, *options, "--json")
        assert compared.exit_code == 0, compared.stderr
        assert {row["name"] for row in json.loads(compared.stdout)["candidates"]} >= {*singles, str(file)}


def test_another_precision_that_fails_has_its_reason_in_the_report(
    cli: Any, tiny: Path, cores: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(kind_of(Device("CPU"))), "other_precision", lambda *_: "bf16")
    executor = Workbench.executor

    def failing(self: Session, plan: Any, **options: Any) -> Any:
        if self.precision == "bf16":
            raise ExecutionError("There is no such kernel.")
        return executor(self, plan, **options)

    monkeypatch.setattr(Workbench, "executor", failing)
    result = cli("optimize", tiny, "-d", cores[0], "--budget", 2, "--placer", "heft", "--compare-precisions")
    assert result.exit_code == 0, result.stderr
    assert f"\n{cores[0]} in bf16 (precision): There is no such kernel.\n" in result.stdout
    assert f"precisions {cores[0]} in bf16 failed, see above" in " ".join(result.stdout.split())


def test_the_only_device_needs_no_reason_from_placements(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    result = cli("optimize", tiny, "-d", cores[0], "--budget", 2, "--placer", "heft")
    assert result.exit_code == 0, result.stderr
    assert "  it is the only device" in result.stdout or "  plain ONNX Runtime, without placeit," in result.stdout
    assert "split" not in result.stdout
    assert "\nbound" not in result.stdout
    assert "\nspeed-up " not in result.stdout


def test_what_nothing_is_known_of_has_no_column(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(DESCRIBED)
    result = cli("optimize", tiny, "-d", cluster, "--budget", 1, "--placer", "heft")
    assert result.exit_code == 0, result.stderr
    assert "simulated" in result.stdout
    for heading in (" measured ", "95 % interval", "speed-up over", "output error", "simulator off by", "compiling"):
        assert heading not in result.stdout.partition("\nchosen ")[0].partition("\n")[2]
    assert "\ncompiling " not in result.stdout


@pytest.mark.two_cores
def test_what_failed_for_one_reason_has_it_once(
    cli: Any, tiny: Path, cores: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "opening", lambda plan: devices_of(plan) != {0})
    result = cli("optimize", tiny, "-d", ",".join(cores), "--budget", 1, "--placer", "heft", "--placer", "cpop")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count(NO_ROOM) == 1
