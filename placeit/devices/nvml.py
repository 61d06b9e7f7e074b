"""Load of NVIDIA GPUs as reported by the driver through NVML: utilisation, memory, power and energy.

They need the package nvidia-ml-py (extra ``cuda``) and a driver. Without either, or without a GPU, the results are empty,
without a message. A value that a GPU does not report (utilisation under MIG, power on some boards) is None.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from placeit.core.errors import UsageError

__all__ = ["Gpu", "GpuEnergy", "GpuSample", "GpuSampler", "GpuUse", "gpu_use", "gpus", "sample_gpus", "why_not"]


@dataclass(frozen=True)
class Gpu:
    """A GPU that the driver lists.

    Attributes:
        name: its name by CUDA's numbering in this process: ``cuda:0``.
        full_name: its name by the driver.
        memory_bytes: its whole memory.
        driver: version of the driver.
    """

    name: str
    full_name: str
    memory_bytes: float
    driver: str


@dataclass(frozen=True)
class GpuSample:
    """Load of a GPU at one moment; values that the GPU does not report are None.

    Attributes:
        gpu: its name, ``cuda:0``.
        time: seconds of the clock ``time.perf_counter``.
        utilization: share of the driver's last period (1/6 s to 1 s, by model) in which a kernel was running, in [0, 1],
            whichever process ran it, and however little of the GPU it used.
        memory_bytes: memory in use by all processes.
        power_w: watts of the whole board, averaged over a second on Ampere and later except GA100.
        memory_utilization: share of the driver's last period in which memory was read or written, in [0, 1].
    """

    gpu: str
    time: float
    utilization: float | None
    memory_bytes: float | None
    power_w: float | None
    memory_utilization: float | None = None


@dataclass(frozen=True)
class GpuUse:
    """Summary of the samples of one GPU; None for values without samples.

    Attributes:
        utilization: mean over time, in [0, 1].
        peak_memory_bytes: largest memory in use.
        power_w: mean over time.
        energy_j: mean power times the time between first and last sample.
    """

    utilization: float | None
    peak_memory_bytes: float | None
    power_w: float | None
    energy_j: float | None


def gpus() -> list[Gpu]:
    """Return the GPUs that CUDA can use in this process (``CUDA_VISIBLE_DEVICES``) and that respond, by number."""
    found = []
    with _driver() as nvml:
        for name, handle in _visible(nvml):
            full_name, memory = _query(nvml, "nvmlDeviceGetName", handle), _query(nvml, "nvmlDeviceGetMemoryInfo", handle)
            version = _query(nvml, "nvmlSystemGetDriverVersion")
            if full_name is not None and memory is not None:
                found.append(Gpu(name, _text(full_name), float(memory.total), _text(version or "of unknown version")))
    return found


def sample_gpus() -> list[GpuSample]:
    """Sample the load of each GPU; GPUs that report nothing are left out."""
    with _driver() as nvml:
        return _samples(nvml, _visible(nvml))


def gpu_use(samples: Iterable[GpuSample]) -> dict[str, GpuUse]:
    """Summarise samples by GPU."""
    by_gpu: dict[str, list[GpuSample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.gpu, []).append(sample)
    uses = {}
    for gpu, of_gpu in sorted(by_gpu.items()):
        of_gpu.sort(key=lambda sample: sample.time)
        power = _mean([(sample.time, sample.power_w) for sample in of_gpu])
        memory = [sample.memory_bytes for sample in of_gpu if sample.memory_bytes is not None]
        uses[gpu] = GpuUse(
            utilization=_mean([(sample.time, sample.utilization) for sample in of_gpu]),
            peak_memory_bytes=max(memory, default=None),
            power_w=power,
            energy_j=None if power is None else power * (of_gpu[-1].time - of_gpu[0].time),
        )
    return uses


class GpuSampler:
    """Sampler of every GPU while something runs. A context manager, which starts afresh each time it is entered.

        with GpuSampler() as sampler:
            run()
        gpu_use(sampler.samples)

    Samples are taken at the start, at the end, and every ``interval`` in between, by a thread. The driver updates its figures a
    few times a second, so they do not resolve a run of less than a second.

    Args:
        interval: seconds between samples.

    Raises:
        UsageError: the interval is not positive.
    """

    def __init__(self, interval: float = 0.1) -> None:
        if not interval > 0:
            raise UsageError(f"GPUs cannot be sampled every {interval} s: the interval must be positive.")
        self._interval = interval
        self._samples: list[GpuSample] = []
        self._cleanup = contextlib.ExitStack()

    @property
    def samples(self) -> tuple[GpuSample, ...]:
        """Samples so far, in order of time; empty without a GPU."""
        return tuple(self._samples)

    def __enter__(self) -> Self:
        self._samples = []
        with contextlib.ExitStack() as stack:
            nvml = stack.enter_context(_driver())
            visible = _visible(nvml)
            if visible:
                self._samples += _samples(nvml, visible)
                stop = threading.Event()
                thread = threading.Thread(target=self._watch, args=(nvml, visible, stop), name="placeit nvml", daemon=True)
                thread.start()
                stack.callback(thread.join)
                stack.callback(stop.set)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._cleanup.close()

    def _watch(self, nvml: Any, visible: list[tuple[str, Any]], stop: threading.Event) -> None:
        stopped = False
        while not stopped:
            stopped = stop.wait(self._interval)
            self._samples += _samples(nvml, visible)


class GpuEnergy:
    """Reader of the energy of GPUs. A context manager, which holds the driver open, and may be entered again.

    GPUs since Volta count joules since the driver was loaded; older ones report their present watts only.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._nvml = stack.enter_context(_driver())
            self._handles = dict(_visible(self._nvml))
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._handles = {}
        self._cleanup.close()

    def joules(self, gpu: str) -> float:
        """Return the joules of a GPU since the driver was loaded. Raises OSError if it counts none, or does not answer."""
        return self._read(gpu, "nvmlDeviceGetTotalEnergyConsumption")

    def watts(self, gpu: str) -> float:
        """Return the watts of a GPU. Raises OSError if it does not report them, or does not answer."""
        return self._read(gpu, "nvmlDeviceGetPowerUsage")

    def _read(self, gpu: str, question: str) -> float:
        found = _query(self._nvml, question, self._handles[gpu]) if gpu in self._handles else None
        if found is None:
            raise OSError(f"the NVIDIA driver does not answer {question} for {gpu}")
        return float(found) / 1000


def why_not(name: str) -> str:
    """Return why a GPU is not among :func:`gpus`: a package is missing, the driver does not answer, or it lists other GPUs."""
    nvml, reason = _connect()
    if nvml is None:
        return reason
    nvml.nvmlShutdown()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "" if hidden is None else f"; CUDA_VISIBLE_DEVICES is '{hidden}'"
    return f"the NVIDIA driver lists {', '.join(gpu.name for gpu in gpus()) or 'no GPU'} and not {name}{why}"


def _connect() -> tuple[Any, str]:
    """Import ``pynvml`` and open the driver; return None and the reason if that fails."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, "the package nvidia-ml-py, through which GPUs are found, is not installed: `pip install 'placeit[cuda]'`"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:  # no driver, a driver that does not match its library, or no permission
        return None, f"the NVIDIA driver does not answer ({error}): check it with `nvidia-smi`"
    return nvml, ""


@contextlib.contextmanager
def _driver() -> Iterator[Any]:
    """Yield the module ``pynvml``, with the driver open; None if the package or the driver is missing."""
    nvml, _ = _connect()
    if nvml is None:
        yield None
        return
    try:
        yield nvml
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _visible(nvml: Any) -> list[tuple[str, Any]]:
    """Return names and handles of the visible GPUs, in CUDA's order.

    CUDA numbers the GPUs that ``CUDA_VISIBLE_DEVICES`` lists, up to the first that does not exist (CUDA Programming Guide,
    section 5.2.1). Without it, NVML's order equals CUDA's if all GPUs are alike, or with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``;
    otherwise CUDA has the fastest first.
    """
    if nvml is None:
        return []
    handles = [_query(nvml, "nvmlDeviceGetHandleByIndex", number) for number in range(_query(nvml, "nvmlDeviceGetCount") or 0)]
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        handles = list(_listed(nvml, handles, listed))
    return [(f"cuda:{number}", handle) for number, handle in enumerate(handles) if handle is not None]


def _listed(nvml: Any, handles: list[Any], listed: str) -> Iterator[Any]:
    for entry in (entry.strip() for entry in listed.split(",")):
        if entry.isdecimal() and int(entry) < len(handles):
            found = [handles[int(entry)]]
        elif entry.startswith("GPU-"):
            uuids = [handle if handle is None else _query(nvml, "nvmlDeviceGetUUID", handle) for handle in handles]
            found = [handle for handle, uuid in zip(handles, uuids, strict=True) if uuid and _text(uuid).startswith(entry)]
        elif entry.startswith("MIG-"):
            found = [handle for handle in [_query(nvml, "nvmlDeviceGetHandleByUUID", entry)] if handle is not None]
        else:
            return
        if len(found) != 1:
            return
        yield found[0]


def _samples(nvml: Any, visible: list[tuple[str, Any]]) -> list[GpuSample]:
    samples = []
    for name, handle in visible:
        now = time.perf_counter()
        rates = _query(nvml, "nvmlDeviceGetUtilizationRates", handle)
        memory = _query(nvml, "nvmlDeviceGetMemoryInfo", handle)
        milliwatts = _query(nvml, "nvmlDeviceGetPowerUsage", handle)
        if any(answer is not None for answer in (rates, memory, milliwatts)):
            samples.append(
                GpuSample(
                    gpu=name,
                    time=now,
                    utilization=None if rates is None else rates.gpu / 100,
                    memory_bytes=None if memory is None else float(memory.used),
                    power_w=None if milliwatts is None else milliwatts / 1000,
                    memory_utilization=None if rates is None else rates.memory / 100,
                )
            )
    return samples


def _query(nvml: Any, question: str, *about: Any) -> Any:
    """Return the driver's answer; None if it cannot answer: not supported, not permitted, the GPU fell off the bus."""
    try:
        return getattr(nvml, question)(*about)
    except nvml.NVMLError:
        return None


def _mean(points: list[tuple[float, float | None]]) -> float | None:
    """Return the mean over time of values known at some moments."""
    known = [(moment, value) for moment, value in points if value is not None]
    if not known:
        return None
    length = known[-1][0] - known[0][0]
    if length <= 0:
        return fmean(value for _, value in known)
    return sum((v + w) / 2 * (t - s) for (s, v), (t, w) in pairwise(known)) / length


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # old releases of nvidia-ml-py return bytes
