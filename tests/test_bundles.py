"""Bundles: what is built of a placement runs elsewhere, without the model, and says what is wrong where it does not."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placeit
from placeit.application import Application
from placeit.backends.base import Arrays
from placeit.backends.bundle.files import BundleFiles
from placeit.core.cluster import Cluster, Link
from placeit.core.errors import DeviceError, ExecutionError, FileError, PlaceitError, PlacementError, UsageError
from placeit.devices.clusterfile import discover
from placeit.devices.host import allowed_cores
from placeit.devices.names import parse_device
from placeit.session import Session
from tests.bundled import edited, placed, rewritten
from tests.small_models import inception_like, random_model

CORES = tuple(f"CPU@{core}" for core in allowed_cores()[:2])
ONE, OTHER = CORES[0], CORES[-1]

pytestmark = pytest.mark.two_cores


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a model that is split over two devices."""
    path = tmp_path_factory.mktemp("bundles") / "inception.placeit"
    with Session(inception_like(), CORES, cache=None) as session:
        session.build(placed(session), path)
    return path


def check(outputs: Arrays, expected: Arrays) -> None:
    assert list(outputs) == list(expected) or outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "seed"), [("app.placeit", 0), ("app.placeit", 1), ("app", 2)])
def test_a_bundle_computes_what_the_model_does_in_an_archive_and_in_a_folder(name: str, seed: int, tmp_path: Path) -> None:
    with Session(random_model(seed, 30), CORES, cache=None) as session:
        session.build(placed(session, seed), tmp_path / name)
        inputs, model = session.model.random_inputs(5), session.model
        expected = session.reference(inputs)
    with placeit.load(tmp_path / name) as application:
        assert (application.inputs, application.outputs) == (model.inputs, model.outputs)
        assert application.name == model.name
        assert application.versions.keys() == {"placeit", "openvino"}
        assert application.differences == ()
        check(application.run(inputs), expected)
        assert application.check().max_rel <= application.tolerance
        # inputs of which the bundle has no outputs: its segments one by one say what is right
        check(application.session.reference(inputs), expected)


def test_a_server_of_a_bundle_answers(bundle: Path) -> None:
    with Application.load(bundle) as application:
        inputs, expected = application.session.model.samples[0]
        with application.server(in_flight=2, queue=8) as server:
            for answer in [server.submit(inputs) for _ in range(4)]:
                check(answer.result(timeout=60), expected)


def test_replicas_that_are_cut_in_different_ways_serve(tmp_path: Path) -> None:
    with Session(random_model(2, 30), CORES, cache=None) as session:
        single = [session.placement(np.full(len(session.grouping.groups), d), None) for d in range(2)]
        whole = replace(single[0], segments=np.zeros(len(session.model.graph), np.int32))
        order = np.arange(len(session.model.graph))
        half = (session.grouping.group_of[order] >= len(session.grouping.groups) // 2).astype(np.int32)
        cut = replace(single[1], segments=half)
        manifest = session.build(replace(whole, replicas=(cut,)), tmp_path / "replicas.placeit")
    assert len(manifest.segments) == 3
    with placeit.load(tmp_path / "replicas.placeit") as application:
        assert application.check().max_rel <= application.tolerance
        inputs, expected = application.session.model.samples[-1]
        with application.server() as server:
            for answer in [server.submit(inputs) for _ in range(4)]:
                check(answer.result(timeout=60), expected)


@pytest.mark.parametrize("device", ["CPU", "throughput:CPU", ONE, f"{ONE}+{OTHER[4:]}"])
def test_a_model_on_one_device_is_one_segment(device: str, tmp_path: Path) -> None:
    with Session(random_model(1, 12), [device], cache=None) as session:
        manifest = session.build(placed(session), tmp_path / "one.placeit")
    assert len(manifest.segments) == 1
    with placeit.load(tmp_path / "one.placeit") as application:
        assert application.session.cluster.names == discover([device]).names
        assert application.check().max_rel <= application.tolerance


def test_the_plain_device_that_a_search_on_others_may_choose_is_bundled(tmp_path: Path) -> None:
    with Session(random_model(1, 12), CORES, cache=None) as session:
        [(whole,), *_] = (cluster.devices for cluster in session.setup.elsewhere)
        chosen = placed(session.alone(whole))
        manifest = session.build(chosen, tmp_path / "plain.placeit")
    assert [device.name for device in manifest.devices] == [whole.name]
    with placeit.load(tmp_path / "plain.placeit") as application:
        assert application.check().max_rel <= application.tolerance


def test_costs_of_the_place_where_it_was_built_are_known(tmp_path: Path) -> None:
    with Session(random_model(3, 12), CORES, cache=None) as session:
        session.profile(budget_s=0.1)
        chosen = placed(session)
        predicted = session.plan_of(chosen).schedule.makespan
        session.build(chosen, tmp_path / "app.placeit")
    with placeit.load(tmp_path / "app.placeit") as application:
        assert application.session.plan_of(application.placement).schedule.makespan == pytest.approx(predicted)


@pytest.mark.parametrize("bandwidth", [1e9, np.inf])
def test_what_links_take_is_known_however_fast_they_are(tmp_path: Path, bandwidth: float) -> None:
    with Session(random_model(3, 12), CORES, cache=None) as session:
        costs = session.profile(budget_s=0.1)
        links = {pair: Link(bandwidth, 0.25) for pair in costs.cluster.links}
        session.take(replace(costs, cluster=replace(costs.cluster, links=links)))
        chosen = placed(session)
        predicted = session.plan_of(chosen).schedule.makespan
        session.build(chosen, tmp_path / "app.placeit")
    assert predicted > 0.25
    with placeit.load(tmp_path / "app.placeit") as application:
        assert application.session.plan_of(application.placement).schedule.makespan == pytest.approx(predicted)


def test_what_is_the_same_is_the_same_file(tmp_path: Path) -> None:
    with Session(random_model(3, 12), CORES, cache=None) as session:
        for name in ("one", "two"):
            session.build(placed(session), tmp_path / f"{name}.placeit")
    assert (tmp_path / "one.placeit").read_bytes() == (tmp_path / "two.placeit").read_bytes()


def test_a_bundle_needs_neither_torch_nor_onnx(bundle: Path) -> None:
    code = (
        "import sys, placeit\n"
        "with placeit.load(sys.argv[1]) as application:\n"
        "    application.check()\n"
        "print(sorted({'torch', 'onnx', 'ray', 'onnxruntime'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, bundle], capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


# devices


@pytest.mark.parametrize("rematch", [{ONE: OTHER, OTHER: ONE}, {OTHER: "CPU"}, {ONE: f"{ONE}-{ONE[4:]}"}])
def test_other_devices_take_the_places_of_those_of_the_placement(bundle: Path, rematch: dict[str, str]) -> None:
    with placeit.load(bundle, rematch=rematch) as application:
        assert application.check().max_rel <= application.tolerance
        names = {old: str(parse_device(new)) for old, new in rematch.items()}
        assert set(application.placement.device_names) == {names.get(name, name) for name in CORES}
        for old, new in names.items():
            assert (f"{new} takes the place of {old}" in application.differences) == (new != old)


def missing(data: dict[str, Any]) -> None:
    """Have a bundle be of devices that no machine has."""
    for device, name in zip(data["devices"], ("CPU@4000-4003", "CPU@4004"), strict=True):
        text = device["name"]
        device |= {"name": name, "address": name, "cores": 4 if "-" in name else 1, "full_name": "another CPU"}
        placement = data["placement"]
        placement["devices"] = [name if one == text else one for one in placement["devices"]]
        placement["ops"] = {op: name if one == text else one for op, one in placement["ops"].items()}


def test_devices_that_are_not_there_are_listed_and_auto_finds_others(bundle: Path, tmp_path: Path) -> None:
    path = edited(bundle, tmp_path / "elsewhere.placeit", missing)
    with pytest.raises(
        DeviceError, match=r"CPU@4000-4003.*It needs: .*CPU@4004.*--rematch CPU@4000-4003=DEVICE,CPU@4004=DEVICE"
    ):
        placeit.load(path)
    with placeit.load(path, rematch="auto") as application:
        assert sorted(application.placement.device_names) == sorted(CORES)
        assert application.check().max_rel <= application.tolerance
        assert f"{ONE}: 1 core in place of 4 cores" in application.differences


def test_a_file_that_has_become_empty_is_refused() -> None:
    with pytest.raises(FileError, match="not a bundle"):
        BundleFiles(Path("/sys/class/net/lo/ifalias"))  # has a size, and nothing in it


def test_auto_leaves_devices_that_are_there_as_they_are(bundle: Path) -> None:
    with placeit.load(bundle, rematch="auto") as application:
        assert application.placement.device_names == CORES


@pytest.mark.parametrize(
    ("rematch", "says"),
    [
        ({"GPU": "CPU"}, f"no device 'GPU' to rematch; its devices are {ONE}, {OTHER}"),
        ({ONE: OTHER}, f"would all be {OTHER}"),
        ({ONE: f"ort:{ONE}"}, "segments for OpenVINO"),
        ({ONE: "CPU@4000"}, "core 4000"),
        ({ONE: "nonsense"}, "nonsense"),
        ("automatic", "is not a way to rematch devices"),
    ],
)
def test_a_rematch_that_makes_no_sense_is_refused(bundle: Path, rematch: Any, says: str) -> None:
    with pytest.raises(PlaceitError, match=says):
        placeit.load(bundle, rematch=rematch)


def test_a_device_without_room_is_named(bundle: Path) -> None:
    small = Cluster(tuple(replace(device, memory_bytes=100.0) for device in discover(CORES).devices))
    with pytest.raises(PlacementError, match=r"CPU@\d+ has 100 B of memory.*--rematch"):
        placeit.load(bundle, devices=small)


def test_devices_of_a_cluster_are_found_by_name(bundle: Path) -> None:
    with placeit.load(bundle, devices=f"{OTHER},{ONE}") as application:
        assert application.check().max_rel <= application.tolerance
    with pytest.raises(DeviceError, match=f"'{OTHER}' is not among the devices {ONE}"):
        placeit.load(bundle, devices=ONE)


def test_devices_that_were_slowed_down_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "boards.yaml"
    text = f"devices:\n  fast: {{runs_on: {ONE}}}\n  slow: {{runs_on: {OTHER}, slowdown: 2}}\n"
    file.write_text(text, encoding="utf-8")
    with Session(random_model(1, 12), file, cache=None) as session:
        session.build(placed(session, 3), tmp_path / "boards.placeit")
    with pytest.raises(DeviceError, match="slow: it was slowed down on purpose"):
        placeit.load(tmp_path / "boards.placeit")
    for found in ({"devices": file}, {"rematch": {"slow": OTHER}}):
        with placeit.load(tmp_path / "boards.placeit", **found) as application:
            assert application.check().max_rel <= application.tolerance


# what is built


def test_nothing_is_replaced(bundle: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken.placeit"
    taken.write_text("mine", encoding="utf-8")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with Session(random_model(1, 12), CORES, cache=None) as session:
        for path in (taken, tmp_path, tmp_path / "dangling"):
            with pytest.raises(FileError, match="exists, and a bundle replaces nothing"):
                session.build(placed(session), path)
        with pytest.raises(FileError, match="its folder does not exist"):
            session.build(placed(session), tmp_path / "no" / "app.placeit")
    assert taken.read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "taken.placeit"]


def test_a_bundle_that_is_wrong_is_not_written(tmp_path: Path) -> None:
    with Session(random_model(1, 12), CORES, cache=None) as session:
        session.reference.output_check().expected.update(
            {name: value + 1 for name, value in session.reference.output_check().expected.items()}
        )
        with pytest.raises(ExecutionError, match="does not compute here what it should"):
            session.build(placed(session), tmp_path / "app.placeit")
    assert list(tmp_path.iterdir()) == []


def test_a_placement_of_another_model_is_refused(tmp_path: Path) -> None:
    with Session(random_model(2, 12), CORES, cache=None) as session:
        other = placed(session)
    with Session(random_model(1, 12), CORES, cache=None) as session, pytest.raises(PlacementError, match="another model"):
        session.build(other, tmp_path / "app.placeit")


# damaged and hostile files


def swapped(name: str, data: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({next(file for file in files if name in file): data})


def flipped(ending: str) -> Callable[[dict[str, bytes]], None]:
    def flip(files: dict[str, bytes]) -> None:
        name = next(file for file in files if file.endswith(ending) and files[file])
        files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])

    return flip


@pytest.mark.parametrize("ending", [".bin", ".xml", ".npy", "bundle.json"])
def test_an_edited_file_is_noticed(bundle: Path, tmp_path: Path, ending: str) -> None:
    path = rewritten(bundle, tmp_path / "edited.placeit", flipped(ending))
    with pytest.raises(
        FileError, match=r"is not a bundle that can be used: its (file \S+|bundle.json) (was changed|is damaged)"
    ):
        placeit.load(path)


def test_an_edited_plan_is_noticed(bundle: Path, tmp_path: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        files["bundle.json"] = files["bundle.json"].replace(b'"precision": "f32"', b'"precision": "f16"')

    with pytest.raises(FileError, match=r"bundle.json was changed after it was built"):
        placeit.load(rewritten(bundle, tmp_path / "edited.placeit", change))


@pytest.mark.parametrize("share", [0.0001, 0.5, 0.999])
def test_a_bundle_that_is_cut_short_is_noticed(bundle: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "short.placeit"
    path.write_bytes(bundle.read_bytes()[: max(4, int(bundle.stat().st_size * share))])
    with pytest.raises(FileError, match="cut short or damaged"):
        placeit.load(path)


def newer(data: dict[str, Any]) -> None:
    data["version"] = 2
    data["versions"]["placeit"] = "9.1"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (newer, r"version 2 \(written by placeit 9.1\).*Install a newer placeit"),
        (lambda data: data.update(format="placeit-placement"), "is not a bundle's"),
        (lambda data: data.pop("graph"), "contradicts itself"),
        (lambda data: data.update(segments=3), "contradicts itself"),
        (lambda data: data["segments"].pop(), "contradicts itself"),
        (lambda data: data["segments"][0].update(format="pickle"), "contradicts itself"),
        (lambda data: data["segments"][0].update(files=["../../etc/passwd", "b.bin"]), "contradicts itself"),
        (lambda data: data["files"].update({"more.bin": {"bytes": 1, "sha256": "0"}}), "contradicts itself"),
        (lambda data: data["graph"]["edges"].append([0, 0, 99]), "contradicts itself"),
        (lambda data: data["placement"].update(segments=None), "contradicts itself"),
        (lambda data: data["placement"]["ops"].popitem(), "contradicts itself"),
        (lambda data: data.update(tolerance=-1), "contradicts itself"),
        (lambda data: data.update(samples=[]), "contradicts itself"),
        (lambda data: data["inputs"][0].update(op="Result_1"), "contradicts itself"),
        (lambda data: data["inputs"][0].update(dtype="object"), "contradicts itself"),
        (lambda data: data.update(seconds=[[1.0]]), "contradicts itself"),
        (lambda data: data["segments"][0].update(ops=[0]), "no segment"),
        (lambda data: data["segments"][0].update(inputs=["x"]), "no segment"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(
    bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    with pytest.raises(PlaceitError, match=says):
        placeit.load(edited(bundle, tmp_path / "edited.placeit", change))


@pytest.mark.parametrize("name", ["/tmp/evil", "../evil", "a/../../evil", "segments\\evil", "a//b", "C:evil", ".hidden", "ä"])
def test_a_member_that_would_lie_elsewhere_is_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    path = rewritten(bundle, tmp_path / "evil.placeit", lambda files: files.update({name: b"x"}))
    with pytest.raises(FileError, match="has a name that no file of a bundle has"):
        placeit.load(path)


def test_a_member_that_is_a_link_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = rewritten(bundle, tmp_path / "evil.placeit", lambda _: None, external_attr=(stat.S_IFLNK | 0o777) << 16)
    with pytest.raises(FileError, match="is a link"):
        placeit.load(path)


def test_a_bomb_is_refused_before_it_is_opened(bundle: Path, tmp_path: Path) -> None:
    path = rewritten(bundle, tmp_path / "bomb.placeit", swapped(".bin", bytes(1 << 24)), compress_type=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(FileError, match="is compressed or encrypted"):
        placeit.load(path)


def test_a_member_that_is_there_twice_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = rewritten(bundle, tmp_path / "twice.placeit", lambda _: None)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("bundle.json", b"{}")
    with pytest.raises(FileError, match=r"holds the file bundle.json twice"):
        placeit.load(path)


def test_a_member_that_the_list_does_not_name_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = rewritten(bundle, tmp_path / "more.placeit", lambda files: files.update({"more.bin": b"x"}))
    with pytest.raises(FileError, match=r"holds the file more.bin, which its list of files does not name"):
        placeit.load(path)


def test_a_manifest_that_is_too_large_is_refused_before_it_is_parsed(bundle: Path, tmp_path: Path) -> None:
    path = rewritten(bundle, tmp_path / "large.placeit", lambda files: files.update({"bundle.json": b"[" * (17 << 20)}))
    with pytest.raises(FileError, match=r"its bundle\.json has 17825792 bytes, and may have 16777216"):
        placeit.load(path)


def test_members_that_overlap_are_refused(bundle: Path, tmp_path: Path) -> None:
    path = rewritten(bundle, tmp_path / "overlap.placeit", lambda _: None)
    data = bytearray(path.read_bytes())
    directory = [at for at in range(len(data)) if data[at : at + 4] == b"PK\x01\x02"]
    data[directory[1] + 42 : directory[1] + 46] = data[directory[0] + 42 : directory[0] + 46]
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"does not lie where|overlap"):
        placeit.load(path)


def test_large_members_are_aligned_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)  # of 2 GB
    with Session(random_model(1, 12), CORES, cache=None) as session:
        session.build(placed(session), tmp_path / "large.placeit")
    with zipfile.ZipFile(tmp_path / "large.placeit") as archive:
        assert archive.testzip() is None
    files = BundleFiles(tmp_path / "large.placeit")
    assert {files.read(name).ctypes.data % 64 for name in files.names if len(files.read(name))} == {0}
    with placeit.load(tmp_path / "large.placeit") as application:
        assert application.check().max_rel <= application.tolerance


def test_in_another_precision_it_is_compared_in_that_as_well(tmp_path: Path) -> None:
    with Session(random_model(1, 12), CORES, precision="bf16", cache=None) as session:
        session.build(placed(session), tmp_path / "app.placeit")
    with placeit.load(tmp_path / "app.placeit") as application:
        assert application.session.precision == "bf16"
        assert application.check().alike is not None


def test_a_bundle_that_was_packed_anew_works(bundle: Path, tmp_path: Path) -> None:
    with placeit.load(rewritten(bundle, tmp_path / "anew.placeit", lambda _: None)) as application:
        assert application.check().max_rel <= application.tolerance


@pytest.fixture
def unpacked(bundle: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path / "folder")
    return tmp_path / "folder"


def test_a_folder_is_as_good_as_its_archive(unpacked: Path) -> None:
    with placeit.load(unpacked) as application:
        assert application.check().max_rel <= application.tolerance


def test_a_folder_whose_files_are_links_is_refused(unpacked: Path, tmp_path: Path) -> None:
    weights = next(path for path in unpacked.glob("segments/*.bin") if path.stat().st_size)
    weights.rename(tmp_path / "elsewhere.bin")
    weights.symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(FileError, match="cannot be read"):
        placeit.load(unpacked)


def test_a_folder_that_lies_elsewhere_is_refused(unpacked: Path, tmp_path: Path) -> None:
    (unpacked / "segments").rename(tmp_path / "elsewhere")
    (unpacked / "segments").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError, match="cannot be read: it lies outside of the bundle"):
        placeit.load(unpacked)


def test_what_is_no_bundle_says_so(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.placeit").write_text("text", encoding="utf-8")
    (tmp_path / "empty.placeit").touch()
    os.mkfifo(tmp_path / "pipe.placeit")
    with zipfile.ZipFile(tmp_path / "other.placeit", "w") as archive:
        archive.writestr("text.txt", "text")
    says = {
        "folder": "the folder has neither bundle.json",
        "text.placeit": "another kind of file",
        "empty.placeit": "another kind of file",
        "pipe.placeit": "neither a file nor a folder",
        "other.placeit": "has no bundle.json",
        "missing.placeit": "No such file",
    }
    for name, text in says.items():
        with pytest.raises(FileError, match=text):
            placeit.load(tmp_path / name)


def test_wrong_inputs_are_named(bundle: Path) -> None:
    with placeit.load(bundle) as application:
        inputs = application.session.model.random_inputs()
        with pytest.raises(UsageError, match="is missing"):
            application.run({})
        with pytest.raises(UsageError, match="has no input 'more'"):
            application.run({**inputs, "more": np.zeros(1)})
        with pytest.raises(UsageError, match="the model expects"):
            application.run({name: value[..., :1] for name, value in inputs.items()})
    with pytest.raises(ExecutionError, match="closed"):
        application.run(inputs)


@pytest.mark.parametrize("how", ["cut short", "overwritten"])
def test_a_change_of_the_file_reaches_nothing_that_runs(bundle: Path, tmp_path: Path, how: str) -> None:
    path = tmp_path / "app.placeit"
    shutil.copy(bundle, path)
    with placeit.load(path) as application:
        model = application.session.model
        path.write_bytes(b"" if how == "cut short" else bytes(path.stat().st_size))
        assert hashlib.sha256(model.files.read("segments/weights.bin").data).hexdigest() == (
            application.manifest.files["segments/weights.bin"].sha256
        )
        assert application.check().max_rel <= application.tolerance  # it compiles nothing anew, and reads what it has
    assert [*tmp_path.iterdir()] == [path]


def test_a_bundle_without_room_for_a_copy_is_read_into_memory(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "app.placeit"
    shutil.copy(bundle, path)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with placeit.load(path) as application:
        path.write_bytes(b"")
        assert application.check().max_rel <= application.tolerance
