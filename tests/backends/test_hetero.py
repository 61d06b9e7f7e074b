import numpy as np
import openvino
import pytest

from placeit.backends import load
from placeit.backends.openvino.hetero import HOW_TO_RUN, export_hetero
from placeit.core.errors import FileError, PlacementError
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import coarsen


@pytest.fixture(scope="session")
def core():
    """OpenVINO with a second, independent CPU device."""
    core = openvino.Core()
    core.register_plugin("openvino_intel_cpu_plugin", "CPUB")
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    core.set_property("CPUB", {"INFERENCE_PRECISION_HINT": "f32"})
    return core


def scattered(model, seed, names=("CPU", "CPUB")):
    """A random device for every group."""
    groups = coarsen(model.graph)
    devices = np.random.default_rng(seed).integers(0, len(names), len(groups.groups))
    return {name: names[devices[group]] for name, group in zip(model.graph.names, groups.group_of, strict=True)}


def run_as_documented(core, path, device):
    class Openvino:
        Core = staticmethod(lambda: core)

    scope = {"openvino": Openvino}
    exec(HOW_TO_RUN.format(path=path, device=device), scope)
    return scope["compiled"]


@pytest.mark.parametrize("name", ["light_inception_v1", "light_shufflenet"])
def test_an_exported_placement_runs_on_its_devices_and_gives_the_same_outputs(name, packaged, core, tmp_path):
    model = load(packaged(f"onnx/backend/test/data/light/{name}.onnx"))
    device = export_hetero(model, scattered(model, 0), tmp_path / "placed.xml")
    assert device in ("HETERO:CPU,CPUB", "HETERO:CPUB,CPU")
    compiled = run_as_documented(core, tmp_path / "placed.xml", device)
    assert set(compiled.get_property("EXECUTION_DEVICES")) == {"CPU", "CPUB"}
    inputs = model.random_inputs(1)
    expected = core.compile_model(model.ov_model, "CPU")(inputs)
    for mine, reference in zip(compiled(inputs).values(), expected.values(), strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-6)


def test_every_node_of_the_file_carries_its_device_by_name(ir_file, tmp_path):
    model = load(ir_file())
    placement = scattered(model, 3, ("GPU.0", "NPU", "CPU"))
    export_hetero(model, placement, tmp_path / "placed.xml")
    written = openvino_core().read_model(tmp_path / "placed.xml")
    found = {
        node.get_friendly_name(): node.get_rt_info()["user_dataaffinity"].astype(str) for node in written.get_ordered_ops()
    }
    assert {name: found[name] for name in placement} == placement
    assert found["kernel"] == placement["conv"]
    assert found["weights"] in (placement["left"], placement["right"])
    assert set(found) > set(placement)
    assert load(tmp_path / "placed.xml").graph.hash == model.graph.hash


def test_names_that_openvino_does_not_have_are_translated_or_refused(ir_file, tmp_path):
    model = load(ir_file())
    placement = scattered(model, 0, ("CPU@0", "CPU@1"))
    with pytest.raises(PlacementError, match=r"'CPU@[01]', which is not a device of OpenVINO"):
        export_hetero(model, placement, tmp_path / "placed.xml")
    assert not (tmp_path / "placed.xml").exists()
    device = export_hetero(model, placement, tmp_path / "placed.xml", devices={"CPU@0": "CPU", "CPU@1": "GPU"})
    assert sorted(device.removeprefix("HETERO:").split(",")) == ["CPU", "GPU"]


@pytest.mark.parametrize("device", ["cuda:0", "edge1/CPU", "CPU@0-3", "", "cpu"])
def test_other_devices_are_refused(device, ir_file, tmp_path):
    model = load(ir_file())
    placement = scattered(model, 0, ("CPU", device))
    with pytest.raises(PlacementError, match="HETERO knows no others"):
        export_hetero(model, placement, tmp_path / "placed.xml")
    with pytest.raises(PlacementError, match="nothing is divided, and the file runs there as it is"):
        export_hetero(model, dict.fromkeys(model.graph.names, device), tmp_path / "placed.xml")


def test_a_placement_of_another_model_is_refused(ir_file, tmp_path):
    model = load(ir_file())
    whole = dict.fromkeys(model.graph.names, "CPU")
    with pytest.raises(PlacementError, match="does not cover op 'conv'"):
        export_hetero(model, {name: "CPU" for name in whole if name != "conv"}, tmp_path / "placed.xml")
    with pytest.raises(PlacementError, match="has no op 'stranger'"):
        export_hetero(model, {**whole, "stranger": "CPU"}, tmp_path / "placed.xml")


def test_what_cannot_be_written_is_an_error_and_leaves_nothing_half_written(ir_file, tmp_path):
    model = load(ir_file())
    placement = dict.fromkeys(model.graph.names, "CPU")
    with pytest.raises(FileError, match="Cannot write"):
        export_hetero(model, placement, tmp_path / "missing" / "placed.xml")
    with pytest.raises(FileError, match=r"ends in \.xml"):
        export_hetero(model, placement, tmp_path / "placed.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.bin", "small.xml"]


def test_an_export_may_replace_the_file_that_the_model_was_read_from(ir_file, core):
    path = ir_file()
    model = load(path)
    inputs = model.random_inputs(0)
    expected = core.compile_model(model.ov_model, "CPU")(inputs)[0]
    export_hetero(model, dict.fromkeys(model.graph.names, "CPU"), path)
    np.testing.assert_array_equal(core.compile_model(load(path).ov_model, "CPU")(inputs)[0], expected)
