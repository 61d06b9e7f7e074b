"""OpenVINO's C library through ctypes. Its errors are raised as exceptions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from placeit.devices.openvino_errors import what_openvino_says

__all__ = ["OpenVinoLibrary", "Shape"]


class Shape(ctypes.Structure):
    """``ov_shape_t``."""

    _fields_ = (("rank", c_int64), ("dims", POINTER(c_int64)))


class _Version(ctypes.Structure):
    _fields_ = (("build", c_char_p), ("description", c_char_p))


_OUT = POINTER(c_void_p)
_CALLS: dict[str, tuple[Any, ...]] = {
    "ov_get_openvino_version": (POINTER(_Version),),
    "ov_core_create": (_OUT,),
    "ov_core_read_model_from_memory_buffer": (c_void_p, c_char_p, c_size_t, c_void_p, _OUT),
    "ov_core_compile_model": (c_void_p, c_void_p, c_char_p, c_size_t, _OUT),
    "ov_compiled_model_get_property": (c_void_p, c_char_p, _OUT),
    "ov_compiled_model_create_infer_request": (c_void_p, _OUT),
    "ov_infer_request_get_input_tensor_by_index": (c_void_p, c_size_t, _OUT),
    "ov_infer_request_get_output_tensor_by_index": (c_void_p, c_size_t, _OUT),
    "ov_infer_request_set_input_tensor_by_index": (c_void_p, c_size_t, c_void_p),
    "ov_infer_request_set_output_tensor_by_index": (c_void_p, c_size_t, c_void_p),
    "ov_infer_request_infer": (c_void_p,),
    "ov_tensor_create_from_host_ptr": (c_int, Shape, c_void_p, _OUT),
    "ov_tensor_get_element_type": (c_void_p, POINTER(c_int)),
    "ov_tensor_get_byte_size": (c_void_p, POINTER(c_size_t)),
    "ov_tensor_data": (c_void_p, _OUT),
}
"""Functions that return a status, with the types of their arguments. ``ov_core_compile_model`` has further arguments, whose
number is its fourth argument: names and values of properties, alternately, as strings."""
_OPTIONAL: dict[str, tuple[Any, ...]] = {
    "ov_core_get_default_context": (c_void_p, c_char_p, _OUT),
    "ov_remote_context_create_host_tensor": (c_void_p, c_int, Shape, _OUT),
    "ov_model_const_input_by_index": (c_void_p, c_size_t, _OUT),
    "ov_port_get_element_type": (c_void_p, POINTER(c_int)),
}
"""Functions for devices that allocate memory. A library may lack them: then calling one raises KeyError."""
_FREES = (
    "ov_version_free",
    "ov_model_free",
    "ov_output_const_port_free",
    "ov_compiled_model_free",
    "ov_infer_request_free",
    "ov_tensor_free",
    "ov_free",
)
_WITHOUT_MESSAGE = range(-16, -13)
"""Statuses of the C library's own checks, which do not set the last message."""


class OpenVinoLibrary:
    """The functions of the library that placeit calls.

    Calls release Python's lock, as in the Python binding. Freeing holds it, since constants may be in memory that Python owns.

    Args:
        path: path of the library.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it lacks a function.
    """

    def __init__(self, path: Path) -> None:
        library, holding = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        offered = {name: arguments for name, arguments in _OPTIONAL.items() if hasattr(library, name)}
        self._functions: dict[str, Any] = {}
        for name, arguments in (_CALLS | offered).items():
            self._functions[name] = function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        self._frees: dict[str, Any] = {name: getattr(holding, name) for name in _FREES}
        for free in self._frees.values():
            free.argtypes, free.restype = (c_void_p,), None
        self._last_message, self._status_name = library.ov_get_last_err_msg, library.ov_get_error_info
        self._last_message.argtypes, self._last_message.restype = (), c_void_p
        self._status_name.argtypes, self._status_name.restype = (c_int,), c_char_p

        self.infer: Any = self._functions["ov_infer_request_infer"]
        """Run a request, given by its address; returns a status."""

    def address(self, name: str) -> int:
        """Return the address of a function."""
        return int(ctypes.cast(self._functions[name], c_void_p).value or 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises RuntimeError."""
        status = self._functions[name](*arguments)
        if status:
            raise RuntimeError(self.explain(status))

    def make(self, name: str, *arguments: Any) -> int:
        """Call a function that stores an address through its last argument, and return the address. Raises RuntimeError."""
        result = c_void_p()
        self.call(name, *arguments, byref(result))
        return result.value or 0

    def free(self, name: str, address: int) -> None:
        """Free an object of the library by one of its functions."""
        self._frees[name](address)

    def text(self, address: int | None) -> str:
        """Decode a string that the library allocated, and free it."""
        if not address:
            return ""
        text = ctypes.string_at(address).decode(errors="replace")
        self.free("ov_free", address)
        return text

    def explain(self, status: int) -> str:
        """Describe a status other than 0: by OpenVINO's last message, from any thread, or else by the status's name."""
        if status not in _WITHOUT_MESSAGE and (message := self.text(self._last_message())):
            return what_openvino_says(RuntimeError(message))
        return str(self._status_name(status), "utf-8")

    def version(self) -> str:
        """Return the version of OpenVINO, as ``openvino.get_version`` spells it. Raises RuntimeError."""
        version = _Version()
        self.call("ov_get_openvino_version", byref(version))
        found = (version.build or b"").decode()
        self._frees["ov_version_free"](byref(version))
        return found
