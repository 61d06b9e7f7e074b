"""Driver versions of OpenCL's GPUs, which OpenVINO's plugin for GPUs does not report."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_uint, c_void_p
from typing import Any

__all__ = ["driver_versions"]

_GPU, _DRIVER_VERSION, _UUID = 1 << 2, 0x102D, 0x106A  # CL_DEVICE_TYPE_GPU, CL_DRIVER_VERSION, CL_DEVICE_UUID_KHR
_MAX_HANDLES, _UUID_BYTES, _TEXT_BYTES = 64, 16, 256


@functools.cache
def driver_versions() -> dict[str, str]:
    """Return the driver version of each GPU, by the device's UUID in hexadecimal; empty without OpenCL."""
    try:
        library = ctypes.CDLL("libOpenCL.so.1")  # loaded by OpenVINO's plugin
        platforms = _listed(library.clGetPlatformIDs)
        devices = [
            device
            for platform in platforms
            for device in _listed(library.clGetDeviceIDs, c_void_p(platform), ctypes.c_uint64(_GPU))
        ]
        found = [
            (_device_info(library, device, _UUID, _UUID_BYTES), _device_info(library, device, _DRIVER_VERSION, _TEXT_BYTES))
            for device in devices
        ]
    except (OSError, AttributeError):
        return {}
    return {uuid.hex(): version.rstrip(b"\0").decode(errors="replace") for uuid, version in found if uuid and version}


def _listed(function: Any, *arguments: Any) -> list[int]:
    """Return the handles that an OpenCL function lists; empty if it fails."""
    handles, count = (c_void_p * _MAX_HANDLES)(), c_uint()
    if function(*arguments, c_uint(_MAX_HANDLES), handles, byref(count)):
        return []
    return [handle for handle in handles[: min(count.value, _MAX_HANDLES)] if handle]


def _device_info(library: ctypes.CDLL, device: int, name: int, max_bytes: int) -> bytes:
    """Return a property of a device; empty if the device does not have it."""
    value, size = ctypes.create_string_buffer(max_bytes), ctypes.c_size_t()
    if library.clGetDeviceInfo(c_void_p(device), c_uint(name), ctypes.c_size_t(max_bytes), value, byref(size)):
        return b""
    return value.raw[: size.value]
