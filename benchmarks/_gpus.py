"""Intel GPUs for benchmarks: real ones, or else emulated ones (``tests/emulated_gpu``), which are the CPU."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from placeit.devices.nodes.local import Place
from placeit.devices.openvino import openvino_core
from tests.emulated_gpu.build import MISSING, environment
from tests.emulators import UnavailableError

__all__ = ["gpus", "restart_with_gpus", "with_gpu"]


def gpus() -> list[str]:
    """Return the names of the Intel GPUs that OpenVINO finds."""
    return [name for name in openvino_core().available_devices if name.split(".")[0] == "GPU"]


def restart_with_gpus(benchmark: str) -> None:
    """Start this process anew, with emulated GPUs, if there are no real ones: they have to be there from the start.

    If they cannot be built, the variable :data:`tests.emulated_gpu.build.MISSING` says why in the new process.
    """
    if MISSING in os.environ or "EMULATED_GPUS" in os.environ or gpus():
        return
    try:
        changes = environment()
    except UnavailableError as error:
        changes = {MISSING: str(error)}
    os.execve(sys.executable, [sys.executable, "-m", f"benchmarks.{benchmark}", *sys.argv[1:]], os.environ | changes)


def with_gpu(place: Place) -> Place:
    """Return a place where OpenVINO finds an emulated Intel GPU. Raises UnavailableError if none can be built."""
    library = environment()["LD_LIBRARY_PATH"]
    return replace(place, enter=(*place.enter, "env", f"LD_LIBRARY_PATH={library}", "EMULATED_GPUS=1"))
