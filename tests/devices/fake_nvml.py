"""A stand-in for ``pynvml``, with GPUs that can be told to fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, Self

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 3, 4, 6, 9
LIBRARY_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, UNKNOWN = 12, 15, 18, 999
UNINITIALIZED, INVALID_ARGUMENT = 1, 2
GIB = 2**30


class NVMLError(Exception):
    """As in nvidia-ml-py: made of a code, it is of the subclass for that code, and equal to any with the same code."""

    by_code: ClassVar[dict[int, type[NVMLError]]] = {}
    value: int

    def __new__(cls, value: int) -> Self:
        error: Any = Exception.__new__(cls.by_code.get(value, cls) if cls is NVMLError else cls)
        error.value = value
        return error

    def __str__(self) -> str:
        return f"NVML Error with code {self.value}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NVMLError) and self.value == other.value

    __hash__ = Exception.__hash__


NVMLError.by_code = {
    code: type(f"NVMLError_{code}", (NVMLError,), {})
    for code in (NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_IS_LOST, UNKNOWN)
}


class FakeNvml:
    """The functions of ``pynvml`` that placeit calls, with GPUs that can be told to fail."""

    NVMLError = NVMLError

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.open = 0
        self.fails: dict[tuple[str, int | None], int] = {}
        self.busy = 25
        self.energy_mj = 1_000_000
        self.asked = 0

    def _ask(self, function: str, gpu: int | None = None) -> None:
        if function != "nvmlInit" and not self.open:
            raise NVMLError(UNINITIALIZED)
        for key in ((function, gpu), (function, None), ("*", gpu)):
            if key in self.fails and (gpu is not None or key[0] != "*"):
                raise NVMLError(self.fails[key])

    def nvmlInit(self) -> None:  # noqa: N802
        self._ask("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._ask("nvmlShutdown")
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._ask("nvmlSystemGetDriverVersion")
        return "580.65.06"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._ask("nvmlDeviceGetCount")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:  # noqa: N802
        self._ask("nvmlDeviceGetHandleByIndex", index)
        if not 0 <= index < self.count:
            raise NVMLError(INVALID_ARGUMENT)
        return SimpleNamespace(number=index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimpleNamespace:  # noqa: N802
        self._ask("nvmlDeviceGetHandleByUUID")
        if uuid != "MIG-7":
            raise NVMLError(NOT_FOUND)
        return SimpleNamespace(number=7)

    def nvmlDeviceGetUUID(self, handle: SimpleNamespace) -> str:  # noqa: N802
        self._ask("nvmlDeviceGetUUID", handle.number)
        return f"GPU-{'ab'[handle.number % 2]}{handle.number}-1234"

    def nvmlDeviceGetName(self, handle: SimpleNamespace) -> str:  # noqa: N802
        self._ask("nvmlDeviceGetName", handle.number)
        return f"NVIDIA H100 no. {handle.number}"

    def nvmlDeviceGetMemoryInfo(self, handle: SimpleNamespace) -> SimpleNamespace:  # noqa: N802
        self._ask("nvmlDeviceGetMemoryInfo", handle.number)
        return SimpleNamespace(total=80 * GIB, free=79 * GIB, used=GIB * (1 + handle.number))

    def nvmlDeviceGetUtilizationRates(self, handle: SimpleNamespace) -> SimpleNamespace:  # noqa: N802
        self._ask("nvmlDeviceGetUtilizationRates", handle.number)
        self.asked += 1
        return SimpleNamespace(gpu=self.busy, memory=3)

    def nvmlDeviceGetPowerUsage(self, handle: SimpleNamespace) -> int:  # noqa: N802
        self._ask("nvmlDeviceGetPowerUsage", handle.number)
        return 71_500

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: SimpleNamespace) -> int:  # noqa: N802
        self._ask("nvmlDeviceGetTotalEnergyConsumption", handle.number)
        return self.energy_mj
