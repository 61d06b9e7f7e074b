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
    """Forbid TF32 in the whole process; the last context that ends restores the user's setting."""
    _Rounding.forbid()
    try:
        yield
    finally:
        _Rounding.allow()


class _Rounding:
    """The rounding of float32 in CUDA's convolutions and recurrent layers, which is one setting for the whole process."""

    _lock = threading.Lock()
    _forbidding = 0
    _wanted = _EXACT  # the user's setting

    @classmethod
    def forbid(cls) -> None:
        """Forbid TF32 until :meth:`allow` has been called as often."""
        with cls._lock:
            now = _precision()
            if not cls._forbidding or now != _EXACT:  # or the user has changed it since
                cls._wanted = now
            _set_precision(_EXACT)
            cls._forbidding += 1

    @classmethod
    def allow(cls) -> None:
        """Restore the user's setting, unless another accelerator still forbids TF32."""
        with cls._lock:
            cls._forbidding -= 1
            if not cls._forbidding and _precision() == _EXACT:
                _set_precision(cls._wanted)


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
