"""OpenVINO's C library through ctypes: infer requests that native code can run by a function pointer.

The ``openvino`` wheel contains the library. It computes the same results as the Python binding, with the same properties, and
also has a function pointer with its argument, :attr:`NativeRequest.entry`. Its core is not the core of the Python binding, but
an integrated GPU uses memory in place that its plugin has allocated for either core (2026.4).
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError
from placeit.core.telemetry import import_openvino
from placeit.devices.compiled import compile_cached
from placeit.devices.openvino import openvino_core
from placeit.devices.openvino_errors import explaining, what_openvino_says
from placeit.runtime.devices.openvino_library import OpenVinoLibrary, Shape

__all__ = [
    "NativeContext",
    "NativeModel",
    "NativeOpenVino",
    "NativeRequest",
    "NativeTensor",
    "Spec",
    "library_folder",
    "native_openvino",
    "why_not",
]

Spec = tuple[tuple[int, ...] | None, np.dtype[Any]]
"""Shape and NumPy type of an input or output. The shape is None if any size of a tensor in the model is open: a request then
has no memory for inputs and outputs before a run."""

_F32 = 4  # ``ov_element_type_e.F32``
_VERSIONS = (2025, 0), (2026, 4)  # first and last release whose functions, structs and handles are as they are declared here
_DTYPES = {"boolean": "bool", "bf16": "uint16", "f16": "float16", "f32": "float32", "f64": "float64"} | {
    f"{letter}{bits}": f"{kind}{bits}" for letter, kind in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)
}
_PROBE = (
    b'<net name="probe" version="11"><layers><layer id="0" name="x" type="Parameter" version="opset1"><data shape="1" '
    b'element_type="f32"/><output><port id="0" precision="FP32"><dim>1</dim></port></output></layer><layer id="1" name="y" '
    b'type="Result" version="opset1"><input><port id="0" precision="FP32"><dim>1</dim></port></input></layer></layers><edges>'
    b'<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>'
)


def library_folder() -> Path:
    """Return the folder of the libraries in the installed wheel."""
    return Path(import_openvino().__file__).parent / "libs"


def native_openvino() -> NativeOpenVino | None:
    """Return the C library of the installed wheel, loaded once; None if it cannot be used (:func:`why_not` returns why)."""
    found = _load_library(library_folder(), str(import_openvino().get_version()))
    return None if isinstance(found, str) else found


def why_not() -> str | None:
    """Return why the C library cannot be used; None if it can."""
    found = _load_library(library_folder(), str(import_openvino().get_version()))
    return found if isinstance(found, str) else None


@functools.cache
def _load_library(folder: Path, version: str) -> NativeOpenVino | str:
    libraries = sorted(folder.glob("*openvino_c.*"))
    if not libraries:
        return f"OpenVINO's C library is not in {folder}"
    try:
        return NativeOpenVino(libraries[0], version)
    except (OSError, AttributeError, RuntimeError, LookupError, TypeError, ValueError) as error:
        return f"{libraries[0]} cannot be used: {what_openvino_says(error)}"


class NativeOpenVino:
    """The C library with its own core, which is shared and never released, like Python's (``openvino_core``).

    A model is passed in place. The C library's handle of a model is a C++ shared pointer, so a handle is made that points to
    Python's model. When the library is loaded, three things are checked: this code was written for its release, its handles are
    such pointers, and the models of both libraries are of the same C++ class. Nothing is copied or written, and constants stay
    shared with the model, as with the Python binding. A file in memory would cost more: with 200 MB of constants, 0.3 to 0.7 s
    for each compilation, and 200 MB for as long as the compiled model lives, because the CPU plugin keeps the memory that it
    reads constants from (2026.4).

    If sizes are open, tensors of Python are passed in the same way. A tensor that one request writes and another one reads has
    to be the same object for both, as the shape is part of it.

    Args:
        path: path of the library.
        version: version of OpenVINO's Python binding.

    Attributes:
        takes_tensors: whether tensors of Python can be passed; if not, models with open sizes cannot be compiled.

    Raises:
        OSError, AttributeError, RuntimeError, LookupError, TypeError, ValueError: it cannot be used.
    """

    def __init__(self, path: Path, version: str) -> None:
        self._library = OpenVinoLibrary(path)
        if (found := self._library.version()) != version:
            raise RuntimeError(f"it is of OpenVINO {found}, and Python's is {version}")
        _check_release(version)
        self._core = self._library.make("ov_core_create")
        self._contexts: dict[str, NativeContext] = {}
        self._check_handles()
        self.takes_tensors = self._knows_tensors()

    def compile(self, model: Any, target: str, properties: Mapping[str, Any], identity: str = "") -> NativeModel:
        """Compile an ``openvino.Model``, or load it from the cache of compiled models if the cache is on.

        Args:
            model: the model. It must not be changed afterwards.
            target: a device of OpenVINO, such as ``CPU``.
            properties: properties to compile with, spelled as for the Python binding.
            identity: key of the model in the cache.

        Raises:
            DeviceError: OpenVINO cannot compile it, sizes are open and tensors cannot be passed, NumPy cannot hold an input or
                output, or the model keeps state between runs, which the C library cannot reset.
        """
        with explaining(f"OpenVINO cannot compile a model for {target}"):
            if model.get_variables():
                raise ValueError("it keeps state between runs, which OpenVINO's C library cannot reset")
            compiled: NativeModel = compile_cached(self, model, target, properties, identity)
            return compiled

    def compile_model(self, model: Any, target: str, properties: Mapping[str, Any]) -> NativeModel:
        """Compile without a cache, with the interface of the Python binding's core. Raises RuntimeError or ValueError."""
        spelled = [c_char_p(_property_text(text)) for name_and_value in properties.items() for text in name_and_value]
        if model.is_dynamic() and not self.takes_tensors:
            raise ValueError("a shape is not fixed")
        specs = [[_spec(port, model.is_dynamic()) for port in ports] for ports in (model.inputs, model.outputs)]
        compiled = c_void_p()
        arguments = self._core, _handle_of(model), target.encode(), len(spelled), byref(compiled), *spelled
        self._library.call("ov_core_compile_model", *arguments)
        return NativeModel(self._library, compiled.value or 0, model, *specs)

    def context(self, target: str) -> NativeContext:
        """Return the allocator of memory for a GPU. Raises DeviceError if OpenVINO has no such GPU, or cannot make it."""
        with explaining(f"OpenVINO cannot allocate memory for {target}"):
            if target not in self._contexts:
                context = self._library.make("ov_core_get_default_context", self._core, target.encode())
                self._contexts[target] = NativeContext(self._library, context)
            return self._contexts[target]

    def explain(self, status: int = -1) -> str:
        """Describe a status of ``infer`` other than 0, by OpenVINO's last message from any thread."""
        return self._library.explain(status)

    def _check_handles(self) -> None:
        """Check that a handle of a model is a shared pointer to an object of the class of Python's models."""
        model = openvino_core().read_model(_PROBE, b"")
        handle = self._library.make("ov_core_read_model_from_memory_buffer", self._core, _PROBE, len(_PROBE), None)
        try:
            theirs, ours = (c_void_p * 2).from_address(handle), _handle_of(model)
            if not theirs[1] or _first_word(theirs[0]) != _first_word(ours[0]):
                raise RuntimeError("its models are of another class than the Python binding's")
        finally:
            self._library.free("ov_model_free", handle)

    def _knows_tensors(self) -> bool:
        """Return whether a handle of a tensor is a shared pointer to the object that a tensor of Python holds.

        A handle that was made here is passed to the library only if it has the form of a handle that the library has made.
        """
        memory = np.zeros((2, 3))
        tensor, size = import_openvino().Tensor(memory, shared_memory=True), c_size_t()
        if not hasattr(type(tensor), "_pybind11_conduit_v1_"):  # not of pybind11: its memory layout may differ
            return False
        handle = self._library.make("ov_tensor_create_from_host_ptr", _F32, _shape((2, 3)), memory.ctypes.data)
        try:
            theirs, ours = (c_void_p * 2).from_address(handle), _handle_of_tensor(tensor)
            # a tensor begins with a pointer to an object whose first word identifies its class
            if not theirs[1] or _first_word(_first_word(theirs[0])) != _first_word(_first_word(ours[0])):
                return False
        finally:
            self._library.free("ov_tensor_free", handle)
        self._library.call("ov_tensor_get_byte_size", _handle_of_tensor(tensor), byref(size))
        same = self._library.make("ov_tensor_data", _handle_of_tensor(tensor)) == tensor.data.ctypes.data
        return bool(same and size.value == tensor.get_byte_size())


class NativeContext:
    """Allocator of memory for a GPU, for models that were compiled for the same GPU through the C library."""

    def __init__(self, library: OpenVinoLibrary, context: int) -> None:
        self._library, self._context = library, context

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NativeTensor:
        """Allocate host memory that the GPU uses in place, and zero it. Raises RuntimeError, TypeError or LookupError."""
        arguments = self._context, _element_type(self._library, dtype), _shape(shape)
        made = NativeTensor(
            self._library, self._library.make("ov_remote_context_create_host_tensor", *arguments), (tuple(shape), dtype)
        )
        made.view()[...] = 0
        return made


class NativeTensor:
    """A tensor of the C library: memory of an infer request, or memory that a GPU's plugin has allocated.

    Attributes:
        address: address of the library's handle.
    """

    def __init__(self, library: OpenVinoLibrary, address: int, spec: Spec, owner: object = None) -> None:
        weakref.finalize(self, library.free, "ov_tensor_free", address).atexit = False
        self.address = address
        self._library, self._spec, self._owner = library, spec, owner

    def view(self) -> NDArray[Any]:
        """Return an array in the memory, which it keeps alive. Raises RuntimeError, or ValueError for an unexpected size."""
        (shape, dtype), size = self._spec, c_size_t()
        assert shape is not None  # noqa: S101 (tensors with open sizes are Python's)
        self._library.call("ov_tensor_get_byte_size", self.address, byref(size))
        if size.value != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"it takes {size.value} bytes where {dtype}{list(shape)} was expected")
        if not size.value:
            return np.empty(shape, dtype)
        memory: Any = (ctypes.c_char * size.value).from_address(self._library.make("ov_tensor_data", self.address))
        memory.tensor = self
        return np.frombuffer(memory, dtype).reshape(shape)


class NativeModel:
    """A segment compiled through the C library.

    Attributes:
        inputs: shape and NumPy type of each input in memory. The bits of bf16, which NumPy lacks, are ``uint16``.
        outputs: shape and NumPy type of each output in memory.
    """

    def __init__(
        self, library: OpenVinoLibrary, compiled: int, source: Any, inputs: Sequence[Spec], outputs: Sequence[Spec]
    ) -> None:
        # objects that are alive when the interpreter exits are not freed: requests may still be running
        weakref.finalize(self, library.free, "ov_compiled_model_free", compiled).atexit = False
        self._library, self._compiled, self._source = library, compiled, source
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    def request(self) -> NativeRequest:
        """Make an infer request. Raises DeviceError."""
        with explaining("OpenVINO cannot make an infer request"):
            return NativeRequest(
                self._library, self, self._library.make("ov_compiled_model_create_infer_request", self._compiled)
            )

    def property(self, name: str) -> str:
        """Return the current value of a property, as text. Raises DeviceError."""
        with explaining(f"OpenVINO does not tell {name} of a compiled model"):
            return self._library.text(self._library.make("ov_compiled_model_get_property", self._compiled, name.encode()))


class NativeRequest:
    """An infer request of a compiled segment, which only one thread may run at a time.

    Attributes:
        entry: addresses of a function ``int infer(void *request)`` and of its argument, for as long as this object lives. Any
            thread may call it, with or without Python's lock. It returns when the run has ended: 0 for success.
    """

    def __init__(self, library: OpenVinoLibrary, model: NativeModel, address: int) -> None:
        self.entry = library.address("ov_infer_request_infer"), address
        self._library, self._model, self._address = library, model, address
        self._bound: dict[tuple[str, int], object] = {}
        weakref.finalize(self, _free_request, library, address, model, self._bound).atexit = False

    def set_input(self, index: int, memory: Any) -> None:
        """Read input ``index`` from some memory in every later run, with the value at the start of the run."""
        self._set("input", index, memory)

    def set_output(self, index: int, memory: Any) -> None:
        """Write output ``index`` to some memory in every later run."""
        self._set("output", index, memory)

    def _set(self, side: str, index: int, memory: Any) -> None:
        """Set the memory of an input or output.

        Args:
            side: ``input`` or ``output``.
            index: number of the input or output.
            memory: a C-contiguous array of its shape and type, writable for an output; or a tensor of the library. If sizes are
                open, an ``openvino.Tensor``, of which a run sets the shape. The request keeps it alive.

        Raises:
            DeviceError: the memory does not fit, there is no such input or output, or the request is running.
        """
        with explaining(f"A buffer does not fit {side} {index} of a segment"):
            shape, dtype = _at(self._model.inputs if side == "input" else self._model.outputs, index)
            if shape is None:
                handle = _handle_of_tensor(memory)
                self._library.call(f"ov_infer_request_set_{side}_tensor_by_index", self._address, index, handle)
                self._bound[side, index] = memory
                return
            array = memory.view() if isinstance(memory, NativeTensor) else memory
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"it is {array.dtype}{list(array.shape)} where {dtype}{list(shape)} is expected")
            if not (array.flags.c_contiguous and array.flags.aligned):
                raise ValueError("it is not contiguous in memory")
            if side == "output" and not array.flags.writeable:
                raise ValueError("it is read-only")
            tensor = memory if isinstance(memory, NativeTensor) else self._tensor_of(side, index, array)
            self._library.call(f"ov_infer_request_set_{side}_tensor_by_index", self._address, index, tensor.address)
            self._bound[side, index] = memory

    def _tensor_of(self, side: str, index: int, array: NDArray[Any]) -> NativeTensor:
        """Make a tensor in the memory of an array, of the type that the request has there."""
        spec, kind = (array.shape, array.dtype), c_int()
        own = NativeTensor(
            self._library, self._library.make(f"ov_infer_request_get_{side}_tensor_by_index", self._address, index), spec
        )
        self._library.call("ov_tensor_get_element_type", own.address, byref(kind))
        arguments = kind, _shape(array.shape), array.ctypes.data
        return NativeTensor(self._library, self._library.make("ov_tensor_create_from_host_ptr", *arguments), spec, array)

    def output(self, index: int) -> NativeTensor:
        """Return the tensor that output ``index`` is written to, which keeps the request alive.

        Raises:
            DeviceError: there is no such output.
        """
        with explaining(f"Output {index} of a segment cannot be viewed"):
            spec = _at(self._model.outputs, index)
            address = self._library.make("ov_infer_request_get_output_tensor_by_index", self._address, index)
            return NativeTensor(self._library, address, spec, self)

    def infer(self) -> None:
        """Run without Python's lock, as far as possible in the calling thread. Raises DeviceError."""
        if status := self._library.infer(self._address):
            raise DeviceError(f"Inference failed: {self._library.explain(status)}")


def _check_release(version: str) -> None:
    """Check that a version, such as ``2026.4.1-22982-e213a147257``, is of a known release. Raises RuntimeError."""
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if not _VERSIONS[0] <= release <= _VERSIONS[1]:
        first, last = (".".join(map(str, one)) for one in _VERSIONS)
        raise RuntimeError(f"it is of OpenVINO {version}, and placeit knows the C library of {first} to {last}")


def _free_request(library: OpenVinoLibrary, address: int, *_kept: object) -> None:
    library.free("ov_infer_request_free", address)


def _shape(shape: Sequence[int]) -> Shape:
    return Shape(len(shape), (c_int64 * len(shape))(*shape))


@functools.cache
def _element_type(library: OpenVinoLibrary, dtype: np.dtype[Any]) -> int:
    """Return the C library's number of a type, which differs between versions. Raises TypeError or RuntimeError."""
    openvino = import_openvino()
    x = openvino.op.Parameter(openvino.Type(dtype), openvino.PartialShape([]))
    model, kind = openvino.Model([openvino.op.Result(x.output(0))], [x], "type"), c_int()
    port = library.make("ov_model_const_input_by_index", _handle_of(model), 0)
    try:
        library.call("ov_port_get_element_type", port, byref(kind))
    finally:
        library.free("ov_output_const_port_free", port)
    return kind.value


def _handle_of(model: Any) -> ctypes.Array[c_void_p]:
    """Make the C library's handle of a model: a shared pointer without ownership, which the model has to outlive."""
    return (c_void_p * 2)(model._get_raw_address(), None)


def _handle_of_tensor(tensor: Any) -> ctypes.Array[c_void_p]:
    """Make the C library's handle of an ``openvino.Tensor``, from the address that pybind11 keeps after the object's header."""
    if not isinstance(tensor, import_openvino().Tensor):
        raise TypeError(f"a tensor of open sizes is an openvino.Tensor, and not {type(tensor).__name__}")
    return (c_void_p * 2)(c_void_p.from_address(id(tensor) + object.__basicsize__).value, None)


def _first_word(address: int | None) -> int | None:
    """Return the first word of a C++ object, which identifies its class."""
    return c_void_p.from_address(address).value if address else None


def _spec(port: Any, is_open: bool) -> Spec:
    """Return shape and type of an input or output. Raises ValueError."""
    kind = port.get_element_type().get_type_name()
    if kind not in _DTYPES:
        raise ValueError(f"NumPy cannot hold elements of type {kind}")
    return None if is_open else tuple(port.get_shape()), np.dtype(_DTYPES[kind])


def _at(specs: Sequence[Spec], index: int) -> Spec:
    if not 0 <= index < len(specs):
        raise IndexError(f"there are {len(specs)}, counted from 0")
    return specs[index]


def _property_text(value: Any) -> bytes:
    """Spell a property as OpenVINO does."""
    return ("YES" if value else "NO").encode() if isinstance(value, bool) else str(value).encode()
