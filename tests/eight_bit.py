"""Processors whose products of 8-bit numbers are exact."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["EIGHT_BIT"]

_FEATURES = {"avx512_vnni", "avx_vnni", "asimddp"}

EIGHT_BIT = pytest.mark.skipif(
    not _FEATURES & set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split()),
    reason="needs a processor with 8-bit dot products (VNNI): without, int8 kernels of OpenVINO add in 16 bits, which overflow",
)
