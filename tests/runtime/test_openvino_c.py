"""OpenVINO's C library: what the Python binding computes, by function pointer, with nothing copied and nothing left behind."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.compiled import VARIABLE
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import compile_properties, openvino_core
from placeit.runtime.devices import openvino_c, openvino_library
from placeit.runtime.devices.openvino_c import NativeModel, NativeOpenVino, library_folder, native_openvino, why_not
from tests.small_models import inception_like

if native_openvino() is None:  # with an older wheel
    pytest.skip(str(why_not()), allow_module_level=True)

ops: Any = ov.opset13
CORES = allowed_cores()
ONE = compile_properties(Device("one", address=Address("CPU", CORES[:1])), "f32")
TWO = ONE | {"INFERENCE_NUM_THREADS": 2, "NUM_STREAMS": 1}
ALL = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
TYPES = ("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "boolean")


def native() -> NativeOpenVino:
    found = native_openvino()
    assert found is not None
    return found


def compiled(model: Any, properties: dict[str, Any] = ONE) -> NativeModel:
    return native().compile(model, "CPU", properties)


def model_of(*inputs: Any, outputs: list[Any]) -> Any:
    return ov.Model([ops.result(value) for value in outputs], list(inputs), "test")


def relu(size: int = 8) -> Any:
    x = ops.parameter([1, size], ov.Type.f32)
    return model_of(x, outputs=[ops.relu(x)])


def picking(kind: Any = ov.Type.f32) -> Any:
    """A model that fails when it runs, if an index is out of range."""
    if ov.get_version().startswith("2025.0."):
        pytest.skip("the CPU plugin of OpenVINO 2025.0 does not check indices of GatherElements")
    x, index = ops.parameter([4], kind), ops.parameter([4], ov.Type.i64)
    return model_of(x, index, outputs=[ops.gather_elements(x, index, 0)])


def bits(array: NDArray[Any]) -> bytes:
    return array.tobytes()


def by_python(model: Any, properties: dict[str, Any], inputs: list[NDArray[Any]]) -> list[bytes]:
    program = openvino_core().compile_model(model, "CPU", properties)
    request = program.create_infer_request()
    for i, value in enumerate(inputs):
        np.copyto(request.get_input_tensor(i).data, value.view(request.get_input_tensor(i).data.dtype))
    request.infer()
    return [bits(request.get_output_tensor(i).data) for i in range(len(program.outputs))]


def by_c(model: Any, properties: dict[str, Any], inputs: list[NDArray[Any]]) -> list[bytes]:
    program = compiled(model, properties)
    request = program.request()
    for i, value in enumerate(inputs):
        request.set_input(i, value)
    request.infer()
    return [bits(request.output(i).view()) for i in range(len(program.outputs))]


def values(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> NDArray[Any]:
    return rng.integers(0, 2 if dtype == np.dtype(bool) else 100, shape).astype(dtype)


@pytest.mark.parametrize("properties", [ONE, TWO, ALL], ids=["one core", "two threads", "all cores"])
def test_a_network_gives_what_the_python_binding_gives(properties: dict[str, Any]) -> None:
    model = inception_like()
    inputs = list(model.random_inputs(1).values())
    assert by_c(model.ov_model, properties, inputs) == by_python(model.ov_model, properties, inputs)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(4,), (), (2, 0, 3)], ids=["vector", "scalar", "empty"])
def test_every_type_goes_in_and_out_as_with_the_python_binding(kind: str, shape: tuple[int, ...]) -> None:
    x, condition = ops.parameter(list(shape), getattr(ov.Type, kind)), ops.parameter(list(shape), ov.Type.boolean)
    # several outputs: a kernel of this output, of another one, and no kernel at all
    model = model_of(x, condition, outputs=[ops.select(condition, x, x), ops.reshape(x, [-1], False), ops.convert(x, "i32")])
    rng = np.random.default_rng(0)
    specs = compiled(model).inputs
    inputs = [values(shape, dtype, rng) for _, dtype in specs]
    assert by_c(model, ONE, inputs) == by_python(model, ONE, inputs)


@pytest.mark.parametrize("properties", [ONE, TWO, ONE | {"INFERENCE_PRECISION_HINT": "bf16"}, ALL])
def test_properties_are_in_force_as_with_the_python_binding(properties: dict[str, Any]) -> None:
    ours, theirs = compiled(relu(), properties), openvino_core().compile_model(relu(), "CPU", properties)
    for name in ("NUM_STREAMS", "INFERENCE_NUM_THREADS", "PERFORMANCE_HINT"):
        assert ours.property(name) == str(theirs.get_property(name)).rpartition(".")[2]
    assert ours.property("ENABLE_CPU_PINNING") == ("YES" if theirs.get_property("ENABLE_CPU_PINNING") else "NO")
    expected = theirs.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    assert ours.property("INFERENCE_PRECISION_HINT") == expected
    if properties is TWO:
        threads = str(min(2, len(CORES)))  # there are no more than cores
        assert (ours.property("NUM_STREAMS"), ours.property("INFERENCE_NUM_THREADS")) == ("1", threads)


def test_a_property_that_is_unknown_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"cannot compile a model for CPU: .*NO_SUCH_PROPERTY"):
        compiled(relu(), {"NO_SUCH_PROPERTY": 1})
    with pytest.raises(DeviceError, match="does not tell NO_SUCH_PROPERTY"):
        compiled(relu()).property("NO_SUCH_PROPERTY")


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(DeviceError, match="cannot compile a model for XPU"):
        native().compile(relu(), "XPU", {})


def test_inputs_are_read_and_outputs_written_where_they_are() -> None:
    request = compiled(relu()).request()
    x = np.full((1, 8), 3, np.float32)
    request.set_input(0, x)
    y = request.output(0).view()
    request.infer()
    assert (y == 3).all()
    x[...] = 5
    request.infer()
    assert (y == 5).all()
    assert np.shares_memory(y, request.output(0).view())
    other = np.full((1, 8), 7, np.float32)
    request.set_input(0, other)
    request.infer()
    assert (y == 7).all()


def test_outputs_are_written_where_they_are_told_to() -> None:
    request = compiled(relu()).request()
    request.set_input(0, np.full((1, 8), 3, np.float32))
    before, told = request.output(0).view(), np.zeros((1, 8), np.float32)
    request.set_output(0, told)
    assert np.shares_memory(told, request.output(0).view())
    request.infer()
    assert (told == 3).all()
    assert not np.shares_memory(before, told)
    kept = weakref.ref(told)
    del told
    gc.collect()
    assert kept() is not None  # the request writes there
    request.infer()
    assert (request.output(0).view() == 3).all()


def test_a_request_keeps_its_inputs_and_a_view_its_request() -> None:
    request = compiled(relu()).request()
    x = np.full((1, 8), 3, np.float32)
    kept, gone = weakref.ref(x), weakref.ref(request)
    request.set_input(0, x)
    del x
    gc.collect()
    assert kept() is not None
    y = request.output(0).view()
    request.infer()
    del request
    gc.collect()
    assert gone() is not None
    assert (y == 3).all()
    del y
    gc.collect()
    assert gone() is None
    assert kept() is None


@pytest.mark.parametrize("viewed", [False, True])
def test_requests_read_what_others_wrote(viewed: bool) -> None:
    x = ops.parameter([1, 8], ov.Type.f32)
    double = compiled(model_of(x, outputs=[ops.add(x, x)]))
    requests = [double.request() for _ in range(3)]
    first = np.arange(8, dtype=np.float32).reshape(1, 8)
    requests[0].set_input(0, first)
    for a, b in itertools.pairwise(requests):
        b.set_input(0, a.output(0).view() if viewed else a.output(0))
    for scale in (1, 2):
        first[...] = scale * np.arange(8)
        for request in requests:
            request.infer()
        np.testing.assert_array_equal(requests[-1].output(0).view(), 8 * first)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((1, 9), np.float32),
        np.zeros(8, np.float32),
        np.zeros((1, 8), np.float64),
        np.zeros((1, 8), ">f4"),
        np.zeros((1, 16), np.float32)[:, ::2],
    ],
    ids=["size", "rank", "type", "byte order", "stride"],
)
def test_a_buffer_that_does_not_fit_is_refused(array: NDArray[Any]) -> None:
    request = compiled(relu()).request()
    x = np.ones((1, 8), np.float32)
    request.set_input(0, x)
    with pytest.raises(DeviceError, match="A buffer does not fit input 0 of a segment: it is "):
        request.set_input(0, array)
    with pytest.raises(DeviceError, match="A buffer does not fit output 0 of a segment: it is "):
        request.set_output(0, array)
    request.infer()  # with the ones before
    assert (request.output(0).view() == 1).all()


def test_memory_that_is_read_only_is_refused_for_outputs() -> None:
    told = np.zeros((1, 8), np.float32)
    told.setflags(write=False)
    with pytest.raises(DeviceError, match="output 0 of a segment: it is read-only"):
        compiled(relu()).request().set_output(0, told)


@pytest.mark.parametrize("index", [-1, 1])
def test_there_are_no_other_inputs_and_outputs(index: int) -> None:
    request = compiled(relu()).request()
    with pytest.raises(DeviceError, match="there are 1, counted from 0"):
        request.set_input(index, np.zeros((1, 8), np.float32))
    with pytest.raises(DeviceError, match="there are 1, counted from 0"):
        request.set_output(index, np.zeros((1, 8), np.float32))
    with pytest.raises(DeviceError, match="there are 1, counted from 0"):
        request.output(index)


def test_models_that_it_cannot_run_are_refused() -> None:
    x = ops.parameter([1, 2], ov.Type.f32)
    state = ops.read_value(x, "state")
    stateful = ov.Model([ops.result(ops.relu(state))], [ops.assign(state, "state")], [x], "stateful")
    with pytest.raises(DeviceError, match="keeps state between runs"):
        compiled(stateful)
    x = ops.parameter([2], ov.Type.string)
    with pytest.raises(DeviceError, match="elements of type string"):
        compiled(model_of(x, outputs=[x]))


# on one core, OpenVINO makes one thread of two, and one thread with a separate stream loses the exceptions of kernels
_TWO_THREADS = pytest.param(TWO, marks=pytest.mark.two_cores, id="two threads")


@pytest.mark.parametrize("properties", [pytest.param(ONE, id="one core"), _TWO_THREADS])
def test_a_kernel_that_throws_is_an_error_and_the_next_run_is_none(properties: dict[str, Any]) -> None:
    request = compiled(picking(), properties).request()
    x, index = np.arange(4, dtype=np.float32), np.full(4, 77)
    request.set_input(0, x)
    request.set_input(1, index)
    function, argument = request.entry
    infer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(function)
    for _ in range(3):
        index[...] = 77
        with pytest.raises(
            DeviceError, match=r"Inference failed: Node GatherElements.*indices values of GatherElements? exceed"
        ):
            request.infer()
        status = infer(argument)
        assert status != 0
        assert "exceed" in native().explain(status)
        index[...] = 2
        request.infer()
        assert (request.output(0).view() == 2).all()
        assert infer(argument) == 0


def test_a_status_without_a_message_is_named() -> None:
    test_a_kernel_that_throws_is_an_error_and_the_next_run_is_none(ONE)  # leaves a message
    infer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(compiled(relu()).request().entry[0])
    status = infer(None)
    assert status != 0
    assert "exceed" not in native().explain(status)
    assert native().explain(status)


def test_threads_compile_and_run_at_once() -> None:
    model, wrong = inception_like(), []
    inputs = [list(model.random_inputs(seed).values()) for seed in range(4)]
    expected = [by_python(model.ov_model, ONE, values) for values in inputs]
    shared = compiled(model.ov_model)

    def work(i: int) -> None:
        own = compiled(model.ov_model)
        for program in (shared, own):
            request = program.request()
            for k, value in enumerate(inputs[i]):
                request.set_input(k, value)
            for _ in range(10):
                request.infer()
                if [bits(request.output(k).view()) for k in range(len(program.outputs))] != expected[i]:
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def resident_mb() -> float:
    """Private memory in use, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_what_is_compiled_and_freed() -> None:
    x = ops.parameter([1, 512], ov.Type.f32)
    weights = ops.constant(np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32))
    model, value = model_of(x, outputs=[ops.relu(ops.add(x, weights))]), np.ones((1, 512), np.float32)

    def cycles(count: int) -> None:
        for _ in range(count):
            request = compiled(model).request()
            request.set_input(0, value)
            request.infer()
            request.output(0).view()

    cycles(30)
    before = resident_mb()
    cycles(300)
    assert resident_mb() - before < 30  # an output takes 1 MB


def test_constants_that_are_pythons_live_as_long_as_they_are_read() -> None:
    values = np.arange(64, dtype=np.float32)
    x = ops.parameter([64], ov.Type.f32)
    request = compiled(model_of(x, outputs=[ops.add(x, ops.constant(values, shared_memory=True))])).request()
    kept = weakref.ref(values)
    expected = values + 1
    del x, values
    gc.collect()
    request.set_input(0, np.ones(64, np.float32))
    request.infer()
    np.testing.assert_array_equal(request.output(0).view(), expected)
    del request
    gc.collect()
    assert kept() is None


def test_compiled_models_come_from_the_cache_with_their_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    model = inception_like()
    inputs = list(model.random_inputs(1).values())
    first, second = compiled(model.ov_model, TWO), compiled(model.ov_model, TWO)
    assert [program.property("LOADED_FROM_CACHE") for program in (first, second)] == ["NO", "YES"]
    for name in ("INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS", "NUM_STREAMS"):
        assert first.property(name) == second.property(name)
    by_cache = by_c(model.ov_model, TWO, inputs)
    monkeypatch.delenv(VARIABLE)
    assert by_cache == by_python(model.ov_model, TWO, inputs)


@pytest.mark.parametrize("target", ["GPU.99", "CPU"])
def test_a_device_that_allocates_no_memory_is_an_error(target: str) -> None:
    with pytest.raises(DeviceError, match=f"OpenVINO cannot allocate memory for {target}: .*[a-z]"):
        native().context(target)


def test_a_library_without_functions_for_gpus_runs_what_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_library, "_OPTIONAL", {"ov_no_such_function": ()})
    lacking = NativeOpenVino(next(library_folder().glob("*openvino_c.*")), ov.get_version())
    with pytest.raises(DeviceError, match="cannot allocate memory for GPU"):
        lacking.context("GPU")
    request = lacking.compile(relu(), "CPU", ONE).request()
    request.set_input(0, np.full((1, 8), 3, np.float32))
    request.infer()
    assert (request.output(0).view() == 3).all()


def test_without_the_library_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_c, "library_folder", lambda: tmp_path)
    assert native_openvino() is None
    assert why_not() == f"OpenVINO's C library is not in {tmp_path}"


def test_a_library_that_is_none_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libopenvino_c.so").write_text("no library")
    monkeypatch.setattr(openvino_c, "library_folder", lambda: tmp_path)
    assert native_openvino() is None
    assert "libopenvino_c.so cannot be used" in str(why_not())


def test_a_library_without_a_function_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(path for path in library_folder().iterdir() if path.name.startswith("libtbb.so"))
    (tmp_path / "libopenvino_c.so").symlink_to(other)
    monkeypatch.setattr(openvino_c, "library_folder", lambda: tmp_path)
    assert native_openvino() is None
    assert "undefined symbol: ov_" in str(why_not())


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ov, "get_version", lambda: "2031.1")
    assert native_openvino() is None
    assert str(why_not()).endswith("and Python's is 2031.1")


@pytest.mark.parametrize("version", ["2024.6.0-17404", "2027.0.0-30000-abc", "custom build"])
def test_a_library_of_a_release_that_is_not_known_is_not_used(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(ov, "get_version", lambda: version)
    monkeypatch.setattr(openvino_library.OpenVinoLibrary, "version", lambda _: version)
    assert native_openvino() is None
    assert str(why_not()).endswith(f"it is of OpenVINO {version}, and placeit knows the C library of 2025.0 to 2026.4")


def test_handles_of_another_class_are_not_given_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library, handle_of = next(library_folder().glob("*openvino_c.*")), openvino_c._handle_of
    model, tensor = relu(), ov.Tensor(np.zeros(8), shared_memory=True)
    assert NativeOpenVino(library, ov.get_version()).takes_tensors
    with monkeypatch.context() as patch:
        patch.setattr(openvino_c, "_handle_of_tensor", lambda _: handle_of(model))
        assert not NativeOpenVino(library, ov.get_version()).takes_tensors
    handle = openvino_c._handle_of_tensor(tensor)
    with monkeypatch.context() as patch:
        patch.setattr(openvino_c, "_handle_of", lambda _: handle)
        with pytest.raises(RuntimeError, match="its models are of another class than the Python binding's"):
            NativeOpenVino(library, ov.get_version())


PROCESS = """
    import signal, sys, threading, time
    import numpy as np, openvino as ov
    from placeit.runtime.devices.openvino_c import native_openvino

    ops = ov.opset13
    kept = []

    def work():
        x = ops.parameter([1, 64], ov.Type.f32)
        model = ov.Model([ops.result(ops.relu(x))], [x], "m")
        for properties in ({"NUM_STREAMS": 0, "INFERENCE_NUM_THREADS": 1}, {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 2}):
            request = native_openvino().compile(model, "CPU", properties).request()
            request.set_input(0, np.ones((1, 64), np.float32))
            request.infer()
            kept.append((request, request.output(0).view()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
"""
ENDINGS = {
    "with all alive": "",
    "with a cycle": "kept.append(kept)",
    "interrupted": "try:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    work()",
    "failing": "sys.exit(0 if (kept[0][1] == 1).all() else 1)",
    "while it runs": "threading.Thread(target=lambda: [kept[0][0].infer() for _ in iter(int, 1)], daemon=True).start()\n"
    "time.sleep(0.05)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_processes_end_well(ending: str) -> None:
    code = textwrap.dedent(PROCESS) + ENDINGS[ending] + "\nprint('done')\n"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=os.environ, timeout=100, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
