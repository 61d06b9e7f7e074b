"""Whatever is wrong with the input: one paragraph, an exit code, no traceback, and nothing half-written."""

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from placeit.cli import app
from placeit.devices.host import allowed_cores
from tests.cli.table import ROWS, named, words

COMMANDS = [name for name in named("MODEL") if name != "serve"]
PLACED = [name for name in named("PLACEMENT") if name != "serve"]


def paragraph(result: Any, *words: object) -> None:
    """Check that a command failed as it should, naming what is wrong."""
    assert result.exit_code in (1, 2), result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert str(word) in result.stderr


def arguments(command: str, model: Path, placement: Path) -> list[str]:
    """Return a valid command line."""
    (row,) = (row for row in ROWS if row.name == command)
    first = f"CPU@{allowed_cores()[0]}"
    other = placement.with_name("other.json")
    if placement.exists():
        shutil.copy(placement, other)
    stand_for = {"PLACEMENT": [placement], "OTHER": [other], "MODEL": [model], "MAPS": ["--map=CPU@0=CPU"]}
    return [str(word) for word in words(row, stand_for | {key: [first] for key in ("DEVICES", "BOARDS")})]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_is_not_there(cli: Any, placement: Path, command: str) -> None:
    paragraph(cli(*arguments(command, Path("missing.onnx"), placement)), "missing.onnx", "No such file")
    paragraph(cli(*arguments(command, Path("missing/m.onnx"), placement)), "Cannot read missing/m.onnx: No such file")
    assert list(Path().iterdir()) == []


def test_a_server_of_a_model_with_open_sizes_says_where_it_takes_them_from(cli: Any, tiny_open: Path) -> None:
    said = ("`--input-shape x:1,3,16,16`", "give them to 'placeit optimize', and serve its placement with -p")
    paragraph(cli("serve", tiny_open, "--devices", "CPU"), *said)


@pytest.mark.parametrize("command", ["serve -p {placement}", "optimize -d CPU --objective throughput"])
def test_more_requests_in_flight_than_memory_has_room_for(cli: Any, tiny: Path, placement: Path, command: str) -> None:
    first, *options = command.format(placement=placement).split()
    paragraph(cli(first, tiny, *options, "--in-flight", "100000000000"), "at most 1024; got 100000000000")


@pytest.mark.parametrize(
    "command", ["inspect", "optimize --devices CPU", "generate-text", "generate-text -d CPU", "serve", "run"]
)
def test_a_gguf_file_is_refused_with_the_way_to_export_its_model(cli: Any, command: str) -> None:
    Path("hub").mkdir()
    Path("hub/model.gguf").write_bytes(b"GGUF\3\0\0\0")
    name, *options = command.split()
    prompt = ["Once"] if name == "generate-text" else []
    for model in ("hub", "hub/model.gguf"):
        result = cli(name, model, *prompt, *options)
        paragraph(result, "hub/model.gguf is a GGUF file", "optimum-cli export openvino --model NAME")


@pytest.mark.parametrize("command", ["inspect", "optimize", "export"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:200] + bytes(range(256)) + data[456:],
        lambda data: b"this is a text\n" * 40,
        lambda data: b"PK\x03\x04" + data,
    ],
    ids=["empty", "truncated", "corrupted", "text", "zip"],
)
def test_a_model_that_is_none(cli: Any, tiny: Path, placement: Path, tmp_path: Path, command: str, damage: Any) -> None:
    model = tmp_path / "damaged.onnx"
    model.write_bytes(damage(tiny.read_bytes()))
    paragraph(cli(*arguments(command, model, placement)), model)
    assert list(Path().iterdir()) == []


def test_a_file_that_no_backend_reads(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "model.docx").write_text("text")
    paragraph(cli("inspect", tmp_path / "model.docx"), "model.docx", ".onnx")


def test_a_folder_in_place_of_a_model(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").mkdir()
    paragraph(cli("inspect", tmp_path / "model.onnx"), "model.onnx")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name in named("-d")])
@pytest.mark.parametrize("device", ["GPU.7", "CPU@4095", "no such thing"])
def test_a_device_that_is_not_there(cli: Any, tiny: Path, placement: Path, command: str, device: str) -> None:
    paragraph(cli(*arguments(command, tiny, placement), "--devices", device), device)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("command", PLACED)
def test_a_placement_of_another_model(cli: Any, tiny: Path, placement: Path, tmp_path: Path, command: str) -> None:
    other = onnx.load(str(tiny))
    other.graph.node[1].op_type = "Conv"
    other.graph.node[2].op_type = "Sigmoid"
    model = tmp_path / "other.onnx"
    onnx.save(other, str(model))
    paragraph(cli(*arguments(command, model, placement)), placement, "another model")
    assert list(Path().iterdir()) == []


def test_a_name_of_thousands_of_characters_does_not_drown_the_error(cli: Any, tiny: Path, placement: Path) -> None:
    placement.write_text(json.dumps(json.loads(placement.read_text()) | {"graph": "x" * 5000}))
    result = cli(*arguments("run", tiny, placement))
    paragraph(result, placement, "another model", " ... ")
    assert len(result.stderr) < 1500


def test_options_to_copy_are_not_cut(cli: Any, tmp_path: Path) -> None:
    count, path = 60, tmp_path / "model.onnx"
    value = onnx.helper.make_tensor_value_info
    ends = [value(f"past_key_values.{i}", onnx.TensorProto.FLOAT, ["N", 8]) for i in range(count)]
    nodes = [onnx.helper.make_node("Sum", [one.name for one in ends], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", ends, [value("y", onnx.TensorProto.FLOAT, ["N", 8])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    options = " ".join(f"--input-shape past_key_values.{i}:1,8" for i in range(count))
    paragraph(cli("inspect", path), f"`{options}`")
    assert cli("inspect", path, *options.split()).exit_code == 0


@pytest.mark.parametrize("command", PLACED)
def test_a_placement_that_is_not_there(cli: Any, tiny: Path, command: str) -> None:
    paragraph(cli(*arguments(command, tiny, Path("missing.json"))), "missing.json")


@pytest.mark.parametrize("command", ["devices", "profile", "optimize", "run"])
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("devices: {a: {runs_on: CORE}}\ndefault_link: {bandwidth: -1 Gbit/s, latency: 1 us}", "negative"),
        ("devices: {a: {runs_on: CORE, colour: red}}", "colour"),
        ("devices: {a: {flops: .nan, memory_bandwidth: 1 GB/s}}", "nan"),
        ("devices: {a: {runs_on: CORE}", "cluster.yaml"),
        ("", "cluster.yaml"),
    ],
    ids=["negative bandwidth", "unknown key", "NaN", "no YAML", "empty"],
)
def test_a_cluster_file_that_is_wrong(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path, command: str, text: str, word: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text.replace("CORE", cores[0]))
    start = ["devices"] if command == "devices" else arguments(command, tiny, placement)
    paragraph(cli(*start, "--devices", file), file, word)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("command", ["optimize", "compare"])
def test_no_room_in_memory(
    cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    if command == "optimize":
        monkeypatch.setattr("placeit.profiler.costs.profile", lambda *_, **__: pytest.fail("profiled before"))
    file = tmp_path / "cluster.yaml"
    devices = "\n".join(f"  {name}: {{runs_on: {core}, memory: 1 KiB}}" for name, core in zip("ab", cores, strict=False))
    file.write_text(f"devices:\n{devices}\n")
    paragraph(cli(command, tiny, "--devices", file), "memory")
    assert list(Path().iterdir()) == []


def test_a_placement_that_needs_more_memory_than_there_is(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("devices:\n" + "".join(f"  {core}: {{runs_on: {core}, memory: 100 B}}\n" for core in cores))
    paragraph(cli("run", tiny, "-p", placement, "--devices", file), placement, cores[0], "memory")


@pytest.mark.parametrize(
    "command", [("profile", "--output"), ("optimize", "--output"), ("run", "--trace"), ("run", "--outputs")], ids="".join
)
@pytest.mark.parametrize("place", ["missing/file.json", "model.onnx/file.json", "folder"])
def test_an_output_that_cannot_be_written_is_said_before_any_work_is_done(
    cli: Any,
    tiny: Path,
    placement: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, str],
    place: str,
) -> None:
    def work(*args: object, **kwargs: object) -> None:
        pytest.fail("work was done before the output was looked at")

    monkeypatch.setattr("placeit.backends.load", work)
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.onnx").write_text("")
    paragraph(cli(*arguments(command[0], tiny, placement), command[1], tmp_path / place), "Cannot write", tmp_path / place)


def test_a_read_only_folder_for_the_output(cli: Any, tiny: Path) -> None:
    path = Path("/sys/p.json")  # where not even root makes files
    paragraph(cli("optimize", tiny, "-o", path), "Cannot write", path)
    assert not path.exists()


def test_a_full_disk_is_noticed_before_any_work_is_done(
    cli: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placeit.backends.load", lambda *_, **__: pytest.fail("work was done before"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        result = cli("optimize", tiny, "-o", tmp_path / "p.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    paragraph(result, tmp_path / "p.json", "File too large")
    assert not (tmp_path / "p.json").exists()


def test_a_disk_that_is_full_leaves_no_half_written_trace(
    cli: Any, tiny: Path, placement: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(self: Path, text: str, *args: Any, **kwargs: Any) -> int:
        if self.parent != folder:
            return write(self, text, *args, **kwargs)
        write(self, text[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setattr(Path, "write_text", full)
    result = cli("run", tiny, "-p", placement, "--runs", 1, "--trace", folder / "t.json", "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["devices"]) == len(json.loads(placement.read_text())["devices"])
    assert len(result.stderr.splitlines()) == 1
    for word in (str(folder / "t.json"), "No space left", "Lost: the trace."):
        assert word in result.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("steady")  # else more of the cache may be measured again
@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ("core", lambda value: value["core"].__setitem__(0, float("nan"))),
        pytest.param("core", lambda value: value["core"].__setitem__(0, -1e-3), marks=pytest.mark.slow),
        pytest.param("core", lambda value: value["core"].__setitem__(0, None), marks=pytest.mark.slow),
        pytest.param("core", lambda value: value["core"].__setitem__(0, "1"), marks=pytest.mark.slow),
        pytest.param("core", lambda value: value["core"].pop(), marks=pytest.mark.slow),
        pytest.param("core", lambda value: value["cut"].append(0.0), marks=pytest.mark.slow),
        ("core", lambda value: value.pop("cut")),
        ("dispatch", lambda value: value["dispatch"].__setitem__(0, -1.0)),
        pytest.param("dispatch", lambda value: value["dispatch"].pop(), marks=pytest.mark.slow),
        pytest.param("latency", lambda value: value["latency"].append([0.0]), marks=pytest.mark.slow),
        ("load", lambda value: value.update(load=3)),
        pytest.param("read", lambda value: value["read"].__setitem__(0, -1e-9), marks=pytest.mark.slow),
        pytest.param("links", lambda value: value["links"].append([0, 0, 1e9, 1e-6]), marks=pytest.mark.slow),
        ("links", lambda value: value.update(links=3)),
    ],
)
def test_costs_in_the_cache_that_make_no_sense_are_measured_again(
    cli: Any,
    tiny: Path,
    cores: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    wrong: Callable[[Any], object],
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("PLACEIT_CACHE", str(cache))

    def costs() -> list[dict[str, Any]]:
        return [json.loads(entry.read_text())["value"] for entry in sorted(cache.glob("*.json"))]

    assert cli("profile", tiny, "--devices", cores[0]).exit_code == 0
    before = costs()
    damaged = 0
    for entry in cache.glob("*.json"):
        data = json.loads(entry.read_text())
        if where in data["value"]:
            damaged += 1
            wrong(data["value"])
            entry.write_text(json.dumps(data))
    assert damaged
    result = cli("profile", tiny, "--devices", cores[0], "--json")
    assert result.exit_code == 0
    assert "is damaged; it is measured again" in result.stderr
    assert all(group["seconds"][cores[0]] >= 0 for group in json.loads(result.stdout)["groups"])
    assert [{key: len(value) for key, value in cost.items()} for cost in costs()] == [
        {key: len(value) for key, value in cost.items()} for cost in before
    ]


MUTATIONS = st.lists(
    st.tuples(st.sampled_from(["delete", "insert", "replace", "truncate"]), st.integers(0, 2000), st.binary(max_size=4)),
    min_size=1,
    max_size=4,
)


@given(MUTATIONS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_placement_file_is_refused_or_still_a_placement(
    cli: Any, tiny: Path, placement: Path, mutations: list[tuple[str, int, bytes]]
) -> None:
    damaged, output = Path("damaged.json"), Path("placed.xml")
    data = placement.read_bytes()
    for kind, at, new in mutations:
        at %= len(data) + 1
        data = {
            "delete": data[:at] + data[at + 1 + len(new) :],
            "insert": data[:at] + new + data[at:],
            "replace": data[:at] + new + data[at + len(new) :],
            "truncate": data[:at],
        }[kind]
    damaged.write_bytes(data)
    devices = [word for core in json.loads(placement.read_bytes())["devices"] for word in ("--map", f"{core}=CPU")]
    result = CliRunner().invoke(app, ["export", str(tiny), "-p", str(damaged), "-o", str(output), *devices])
    if result.exit_code == 0:
        output.unlink()
        output.with_suffix(".bin").unlink()
    else:
        paragraph(result, damaged)
    assert list(Path().iterdir()) == [damaged]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["format", "version", "graph", "devices", "ops"]), JSON)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_placement_file_with_other_values_is_refused_or_still_a_placement(
    cli: Any, tiny: Path, placement: Path, key: str, value: Any
) -> None:
    damaged = Path("damaged.json")
    damaged.write_text(json.dumps(json.loads(placement.read_text()) | {key: value}))
    result = CliRunner().invoke(app, ["export", str(tiny), "-p", str(damaged), "-o", "placed.xml"])
    paragraph(result)
    assert list(Path().iterdir()) == [damaged]


def test_a_rate_that_is_not_positive_is_refused_before_the_model_is_read(cli: Any) -> None:
    refused = cli("tune", "missing.onnx", "--latency-limit", "p95=1s", "--rate", "-3")
    assert refused.exit_code == 2
    assert "The rate is -3 requests per second" in refused.stderr


@pytest.mark.parametrize("args", [["inspect", ""], ["run", "model.onnx", "--trace", ""], ["demo", ""]])
def test_an_empty_path_is_not_taken_for_the_current_folder(args: list[str]) -> None:
    result = CliRunner().invoke(app, args)
    assert (result.exit_code, "The path is empty" in result.stderr) == (2, True)
