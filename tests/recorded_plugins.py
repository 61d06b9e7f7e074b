"""OpenVINO with plugins that cannot be had here: what they say and refuse is recorded, and what they compute, the CPU computes.

Sources, for each plugin:

- ``NPU``: properties and values of an NPU 3720 (OpenVINO 2025.3, Linux) as listed in issue 50 of SearchSavior/OpenArc; which of
  them can be set, and what it computes in, by OpenVINO's documentation (``npu-device.rst`` of 2025: ``NUM_STREAMS`` is
  read-only, "computation precision for the HW is FP16") and by its source (``INFERENCE_PRECISION_HINT`` takes f16 and i8).
- ``NPU_BARE``: what the plugin of OpenVINO 2026.4 lists where its driver is missing, observed; the precision is not there, as
  with drivers whose compiler does not take it (README of the plugin).
- ``GPU``: properties of an integrated GPU with OpenVINO 2026.4, observed; values of Meteor Lake's as in issue 43 of OpenArc.
- ``DISCRETE``: the same properties, with type, name and capabilities as OpenVINO documents them for cards (``gpu-device.rst``).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from openvino import Tensor
from openvino.properties.device import Type as DeviceType

from placeit.devices.openvino import openvino_core

__all__ = ["DISCRETE", "GPU", "NPU", "NPU_BARE", "Plugin", "RecordedCore", "forget", "recorded", "see", "thrown"]


def thrown(*lines: str) -> str:
    """What OpenVINO throws, with the places that an exception came through."""
    places = ["Exception from src/inference/src/cpp/core.cpp:117:", "Exception from src/inference/src/dev/plugin.cpp:54:"]
    return "\n".join([*places, *lines, "", "", ""])


@dataclass(frozen=True)
class Plugin:
    """A device as its plugin shows it.

    Attributes:
        values: of the properties that it lists.
        settable: which of them can be set.
        precisions: what ``INFERENCE_PRECISION_HINT`` may be.
        unsupported: kinds of ops that it says it does not support.
        compiling: given a model, raises what the plugin raises when it compiles that.
        running: raises what the plugin raises when it runs something.
        unloadable: why the plugin cannot be loaded, as OpenVINO says it; empty if it can.
    """

    values: Mapping[str, Any]
    settable: frozenset[str]
    precisions: tuple[str, ...]
    unsupported: frozenset[str] = frozenset()
    compiling: Callable[[Any], object] = lambda _model: None
    running: Callable[[], object] = lambda: None
    unloadable: str = ""

    def listed(self) -> dict[str, str]:
        return {name: "RW" if name in self.settable else "RO" for name in self.values}


_GPU_SETTABLE = {
    "CACHE_DIR": "",
    "COMPILATION_NUM_THREADS": 2,
    "DEVICE_ID": "0",
    "INFERENCE_PRECISION_HINT": "f16",
    "NUM_STREAMS": 1,
    "PERFORMANCE_HINT": "LATENCY",
    "PERF_COUNT": False,
}
GPU = Plugin(
    values={
        **_GPU_SETTABLE,
        "AVAILABLE_DEVICES": ["0"],
        "DEVICE_ARCHITECTURE": "GPU: vendor=0x8086 arch=v12.71.4",
        "DEVICE_TYPE": DeviceType.INTEGRATED,
        "DEVICE_UUID": "8680557d080000000002000000000000",
        "FULL_DEVICE_NAME": "Intel(R) Arc(TM) Graphics (iGPU)",
        "GPU_DEVICE_ID": "0x7d55",
        "GPU_DEVICE_TOTAL_MEM_SIZE": 30763638784,
        "GPU_UARCH_VERSION": "12.71.4",
        "OPTIMIZATION_CAPABILITIES": ["FP32", "BIN", "FP16", "INT8", "GPU_USM_MEMORY", "EXPORT_IMPORT"],
        "RANGE_FOR_STREAMS": (1, 2),
    },
    settable=frozenset(_GPU_SETTABLE),
    precisions=("f16", "f32", "dynamic"),
)
DISCRETE = replace(
    GPU,
    values=GPU.values
    | {
        "DEVICE_TYPE": DeviceType.DISCRETE,
        "DEVICE_UUID": "8680a056080000000300000000000000",
        "FULL_DEVICE_NAME": "Intel(R) Arc(TM) A770 Graphics (dGPU)",
        "GPU_DEVICE_TOTAL_MEM_SIZE": 16 * 10**9,
        "OPTIMIZATION_CAPABILITIES": ["FP32", "BIN", "FP16", "INT8", "GPU_HW_MATMUL", "GPU_USM_MEMORY", "EXPORT_IMPORT"],
    },
)
_NPU_SETTABLE = {
    "CACHE_DIR": "",
    "COMPILATION_NUM_THREADS": 20,
    "DEVICE_ID": "",
    "INFERENCE_PRECISION_HINT": "f16",
    "LOG_LEVEL": "ERR",
    "MODEL_PRIORITY": "MEDIUM",
    "NPU_COMPILATION_MODE_PARAMS": "",
    "NPU_TILES": -1,
    "NPU_TURBO": False,
    "PERFORMANCE_HINT": "LATENCY",
    "PERFORMANCE_HINT_NUM_REQUESTS": 1,
    "PERF_COUNT": False,
}
NPU = Plugin(
    values={
        **_NPU_SETTABLE,
        "AVAILABLE_DEVICES": ["3720"],
        "DEVICE_ARCHITECTURE": "3720",
        "DEVICE_TYPE": DeviceType.INTEGRATED,
        "DEVICE_UUID": "80d1d11eb73811eab3de0242ac130004",
        "EXECUTION_DEVICES": "NPU",
        "FULL_DEVICE_NAME": "Intel(R) AI Boost",
        "NPU_COMPILER_VERSION": 458778,
        "NPU_DEVICE_ALLOC_MEM_SIZE": 0,
        "NPU_DEVICE_TOTAL_MEM_SIZE": 34359738368,
        "NPU_DRIVER_VERSION": 1004404,
        "NPU_MAX_TILES": 2,
        "NUM_STREAMS": 1,
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS": 1,
        "OPTIMIZATION_CAPABILITIES": ["FP16", "INT8", "EXPORT_IMPORT"],
    },
    settable=frozenset(_NPU_SETTABLE),
    precisions=("f16", "i8"),
)
_BARE_SETTABLE = frozenset(
    [
        "CACHE_DIR",
        "DEVICE_ID",
        "LOG_LEVEL",
        "MODEL_PRIORITY",
        "NPU_BYPASS_UMD_CACHING",
        "NPU_COMPILER_TYPE",
        "NPU_DEFER_WEIGHTS_LOAD",
        "NUM_STREAMS",
        "PERFORMANCE_HINT",
        "PERFORMANCE_HINT_NUM_REQUESTS",
        "PERF_COUNT",
        "WEIGHTS_PATH",
    ]
)
_BARE_LISTED = frozenset(
    [
        "AVAILABLE_DEVICES",
        "DEVICE_GOPS",
        "DEVICE_PCI_INFO",
        "DEVICE_TYPE",
        "DEVICE_UUID",
        "EXECUTION_DEVICES",
        "NPU_COMPILER_VERSION",
        "NPU_DEVICE_ALLOC_MEM_SIZE",
        "NPU_DEVICE_TOTAL_MEM_SIZE",
        "NPU_DRIVER_VERSION",
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
        "OPTIMIZATION_CAPABILITIES",
        "RANGE_FOR_ASYNC_INFER_REQUESTS",
        "RANGE_FOR_STREAMS",
    ]
)
NPU_BARE = replace(
    NPU,
    values={name: NPU.values.get(name, "") for name in _BARE_SETTABLE | _BARE_LISTED} | {"AVAILABLE_DEVICES": []},
    settable=_BARE_SETTABLE,
)


class RecordedCore:
    """OpenVINO's core, with other plugins beside the CPU's.

    Attributes:
        compiled: what each model was compiled with, by device, in order.
    """

    def __init__(self, plugins: Mapping[str, Plugin]) -> None:
        self.plugins = dict(plugins)
        self.compiled: list[tuple[str, dict[str, Any]]] = []
        self._core = openvino_core()

    @property
    def available_devices(self) -> list[str]:
        return ["CPU", *(name for name, one in self.plugins.items() if one.values.get("AVAILABLE_DEVICES", True))]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def get_default_context(self, device: str) -> Any:
        """What allocates memory that a device uses in place; the CPU computes what it computes, so any memory will do."""
        self._plugin(device, "a context")
        return SimpleNamespace(create_host_tensor=Tensor)

    def get_property(self, device: str, name: str) -> Any:
        if device == "CPU":
            return self._core.get_property(device, name)
        plugin = self._plugin(device, name)
        if name == "SUPPORTED_PROPERTIES":
            return plugin.listed()
        if name not in plugin.values:
            raise RuntimeError(thrown(f"Unsupported configuration key: {name}"))
        return plugin.values[name]

    def get_versions(self, device: str) -> dict[str, Any]:
        return {device.split(".")[0]: SimpleNamespace(build_number="2099.1", description="")}

    def query_model(self, model: Any, device: str) -> dict[str, str]:
        if device == "CPU":
            return self._core.query_model(model, device)
        kinds = {op.get_friendly_name(): op.get_type_name() for op in model.get_ordered_ops()}
        return {name: device for name, kind in kinds.items() if kind not in self._plugin(device).unsupported}

    def compile_model(self, model: Any, device: str, config: Mapping[str, Any]) -> Any:
        if device == "CPU":
            return self._core.compile_model(model, device, dict(config))
        plugin = self._plugin(device)
        for name, value in config.items():
            if name not in plugin.settable:
                raise RuntimeError(thrown(f"[ NOT_FOUND ] Option '{name}' is not supported for current configuration"))
            if name == "NUM_STREAMS" and not isinstance(value, str):
                raise RuntimeError(
                    thrown(
                        "Exception from src/inference/src/dev/plugin_config.cpp:90:",
                        f"Invalid value: {value} for property: NUM_STREAMS",
                        "Property description: Number of streams to be used for inference",
                    )
                )
            if name == "INFERENCE_PRECISION_HINT" and value not in plugin.precisions:
                supported = ", ".join(plugin.precisions)
                raise RuntimeError(
                    thrown(f"Wrong value {value} for property key INFERENCE_PRECISION_HINT. Supported values: {supported}")
                )
        plugin.compiling(model)
        self.compiled.append((device, dict(config)))
        return _Compiled(
            self._core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"} | _counters(config)), plugin
        )

    def _plugin(self, device: str, name: str = "") -> Plugin:
        family = [plugin for one, plugin in self.plugins.items() if one.split(".")[0] == device.split(".")[0]]
        if not family:
            raise RuntimeError(thrown(f'Device with "{device}" name is not registered in the OpenVINO Runtime'))
        plugin = self.plugins.get(device, family[0] if device in ("GPU", "NPU") or name == "AVAILABLE_DEVICES" else None)
        if plugin is None:
            raise RuntimeError(
                thrown(
                    "Check 'm_configs_map.find(device_id) != m_configs_map.end()' failed at "
                    "src/plugins/intel_gpu/src/plugin/plugin.cpp:570:",
                    f"[GPU] get_property: Couldn't find config for GPU with id {device.rpartition('.')[2]}",
                )
            )
        if plugin.unloadable:
            raise RuntimeError(f"Exception from src/inference/src/cpp/core.cpp:268:\n{plugin.unloadable}\n")
        return plugin


def _counters(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in ("PERF_COUNT",) if name in config}


class _Compiled:
    def __init__(self, compiled: Any, plugin: Plugin) -> None:
        self._compiled, self._plugin = compiled, plugin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, *arguments: Any) -> Any:
        self._plugin.running()
        return self._compiled(*arguments)

    def create_infer_request(self) -> Any:
        return _Request(self._compiled.create_infer_request(), self._plugin)


class _Request:
    def __init__(self, request: Any, plugin: Plugin) -> None:
        self._request, self._plugin = request, plugin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def infer(self, *arguments: Any, **options: Any) -> Any:
        self._plugin.running()
        return self._request.infer(*arguments, **options)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RecordedCore]]:
    """Have placeit see other plugins: ``recorded(NPU=NPU)``; names with a dot are written with an underscore."""
    yield functools.partial(see, monkeypatch)
    forget()


def see(patch: pytest.MonkeyPatch, **plugins: Plugin) -> RecordedCore:
    """Have placeit see other plugins until ``patch`` is undone; call ``forget`` then."""
    core = RecordedCore({name.replace("_", "."): plugin for name, plugin in plugins.items()})
    for name, module in list(sys.modules.items()):
        if name.startswith("placeit") and getattr(module, "openvino_core", None) is not None:
            patch.setattr(module, "openvino_core", lambda: core)
    forget()
    return core


def forget() -> None:
    """Forget what plugins have said."""
    from placeit.devices import openvino

    for function in vars(openvino).values():
        if isinstance(function, functools._lru_cache_wrapper) and function is not openvino_core:
            function.cache_clear()
