"""The rounding of float32 in PyTorch's convolutions and recurrent layers on CUDA, while a GPU is open."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["without_tf32"]

_EXACT = "ieee", "ieee"  # precision of convolutions and of recurrent layers


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Forbid TF32 in the whole process. The last context that ends restores the user's setting."""
    with _Rounding.lock:
        current = _precision()
        if not _Rounding.contexts or current != _EXACT:  # or the user has changed it since
            _Rounding.wanted = current
        _set_precision(_EXACT)
        _Rounding.contexts += 1
    try:
        yield
    finally:
        with _Rounding.lock:
            _Rounding.contexts -= 1
            if not _Rounding.contexts and _precision() == _EXACT:
                _set_precision(_Rounding.wanted)


class _Rounding:
    """State of :func:`without_tf32`, as CUDA's precision of float32 is a setting of the whole process."""

    lock = threading.Lock()
    contexts = 0  # that are open
    wanted = _EXACT  # the user's setting


def _precision() -> tuple[str, str]:
    """Return float32's precision in convolutions and recurrent layers: ``tf32``, ``ieee``, or ``none``, PyTorch's default."""
    cudnn: Any = torch.backends.cudnn
    if not hasattr(cudnn, "conv"):  # before PyTorch 2.9
        return ("tf32", "tf32") if cudnn.allow_tf32 else _EXACT
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


def _set_precision(wanted: tuple[str, str]) -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32 = "tf32" in wanted  # the older name: PyTorch raises if it is read and contradicts the newer ones
    if hasattr(cudnn, "conv"):
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = wanted
