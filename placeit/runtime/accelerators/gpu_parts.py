"""Parts of an NVIDIA GPU: green contexts, which run kernels on some of its streaming multiprocessors (SMs) only.

``torch.cuda.green_contexts.GreenContext.create(num_sms=...)`` (PyTorch 2.10) takes the first SMs of the whole device each
time, so two contexts that are made in this way share SMs. For disjoint parts, a single call of the driver divides all SMs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from placeit.core.errors import DeviceError

__all__ = ["check_parts", "part_stream"]

_MIN_DRIVER = 12080  # CUDA 12.8, as the driver encodes versions


def check_parts(name: str, index: int, parts: int) -> None:
    """Divide a GPU into equal parts, unless it is divided already.

    Args:
        name: name of the device in errors, such as ``cuda:0@1of2``.
        index: number of the GPU.
        parts: number of equal parts.

    Raises:
        DeviceError: a package is missing, the driver is too old, or the GPU cannot be divided like this.
    """
    driver = _driver(name)
    try:
        version = int(_checked(driver, driver.cuDriverGetVersion()))
        if version < _MIN_DRIVER:
            raise DeviceError(
                f"{name}: the NVIDIA driver is for CUDA {version // 1000}.{version % 1000 // 10}, and parts of a GPU need CUDA "
                "12.8: install a driver of version 570 or newer, or name the whole GPU."
            )
        _contexts(driver, name, index, parts)
    except (RuntimeError, AttributeError) as error:  # from the driver; from bindings older than CUDA 12.8
        raise DeviceError(
            f"{name}: the GPU cannot be divided ({error}). Parts need the driver and the package cuda-bindings for CUDA 12.8 "
            "or newer; name the whole GPU otherwise."
        ) from error


def part_stream(index: int, part: tuple[int, int], priority: int) -> Any:
    """Return a new ``torch.cuda.ExternalStream`` whose kernels run on a part of a GPU; :func:`check_parts` comes first.

    Args:
        index: number of the GPU.
        part: number of the part, from 1, and number of parts.
        priority: priority of the stream, as in ``torch.cuda.Stream``.

    Raises:
        RuntimeError: the driver refuses.
    """
    driver = _driver("a part of a GPU")
    context = _contexts(driver, "", index, part[1])[part[0] - 1]
    made = _checked(driver, driver.cuGreenCtxStreamCreate(context, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, priority))
    external: Any = torch.cuda.ExternalStream
    return external(int(made), device=torch.device("cuda", index))


def _driver(name: str) -> Any:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(
            f"{name}: parts of a GPU need the package cuda-bindings 12.8 or newer, which recent PyTorch for CUDA brings: "
            "`pip install cuda-bindings`, or name the whole GPU."
        ) from error


_created: dict[tuple[int, int], list[Any]] = {}
"""Contexts by GPU and number of parts. They live as long as the process, as another division might take other SMs."""


def _contexts(driver: Any, name: str, index: int, parts: int) -> list[Any]:
    if (index, parts) not in _created:
        torch.empty(1, device=torch.device("cuda", index))  # creates the primary context, which green contexts derive from
        device = _checked(driver, driver.cuDeviceGet(index))
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = _checked(driver, driver.cuDeviceGetDevResource(device, kind))
        flag = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM  # required by the driver
        _created[index, parts] = [
            _checked(
                driver, driver.cuGreenCtxCreate(_checked(driver, driver.cuDevResourceGenerateDesc([group], 1)), device, flag)
            )
            for group in _groups(driver, name, whole, parts)
        ]
    return _created[index, parts]


def _groups(driver: Any, name: str, whole: Any, parts: int) -> list[Any]:
    """Divide SMs into equal groups, as large as the driver makes them: it rounds their size up, on H100 to a multiple of 8."""
    sms = int(whole.sm.smCount)
    for size in range(sms // parts, 0, -1):
        groups, count, _ = _checked(driver, driver.cuDevSmResourceSplitByCount(parts, whole, 0, size))
        if int(count) == parts:
            return list(groups)
    raise DeviceError(f"{name}: the GPU has {sms} SMs, which the driver does not divide into {parts} parts: ask for fewer.")


def _checked(driver: Any, answer: tuple[Any, ...]) -> Any:
    """Return the result of a call of the driver. Raises RuntimeError if it failed."""
    status, *made = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver says {getattr(status, 'name', status)}")
    return made[0] if len(made) == 1 else tuple(made)
