"""Messages of OpenVINO and its plugins, as they become one paragraph of an error."""

from __future__ import annotations

import pytest

from placeit.core.errors import DeviceError, NoRoomError
from placeit.devices.openvino_errors import explaining, what_openvino_says

STREAMS = """Exception from src/inference/src/cpp/core.cpp:117:
Exception from src/inference/src/dev/plugin.cpp:54:
Exception from src/inference/src/dev/plugin_config.cpp:90:
Invalid value: 1 for property: NUM_STREAMS
Property description: Number of streams to be used for inference


"""
OPTION = """Exception from src/inference/src/cpp/core.cpp:117:
Check 'it != m_options_map.end()' failed at src/inference/dev_api/openvino/runtime/plugin_config.hpp:214:
Option not found: NO_SUCH


"""
NESTED = """Exception from src/inference/src/dev/plugin.cpp:54:
Exception from src/plugins/intel_npu/src/compiler_adapter/src/plugin_compiler_adapter.cpp:54:
VCL compiler loading failed, aborting. Error: Exception from src/plugins/intel_npu/src/utils/src/vcl/vcl_api.cpp:22:
Cannot load library "libopenvino_intel_npu_compiler_loader.so"


"""
QUEUE = """Exception from src\\inference\\src\\cpp\\infer_request.cpp:245:
Exception from src\\bindings\\python\\src\\pyopenvino\\core\\infer_request.hpp:54:
Caught exception: Exception from src\\plugins\\intel_gpu\\src\\runtime\\ocl\\ocl_stream.cpp:365:
[GPU] clFlush, error code: -36 CL_INVALID_COMMAND_QUEUE
"""
ALLOCATION = """Exception from src/inference/src/dev/plugin.cpp:54:
Check '!exceed_allocatable_mem_size' failed at src/plugins/intel_gpu/src/runtime/engine.cpp:319:
[GPU] Exceeded max size of memory object allocation: requested 16000000000 bytes, but max alloc size supported by device is \
12638031872 bytes. Please try to reduce batch size, use lower precision, or set ov::intel_gpu::hint::enable_large_allocations \
config property to true.


"""
BUILD = """Exception from src/inference/src/dev/plugin.cpp:54:
Check 'false' failed at src/plugins/intel_gpu/src/plugin/program_builder.cpp:163:
[GPU] ProgramBuilder build failed!
Exception from src/plugins/intel_gpu/src/runtime/ocl/ocl_stream.cpp:365:
[GPU] clFlush, error code: -5 CL_OUT_OF_RESOURCES


"""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            STREAMS,
            "Invalid value: 1 for property: NUM_STREAMS. Property description: Number of streams to be used for inference",
        ),
        (OPTION, "Option not found: NO_SUCH"),
        (
            NESTED,
            'VCL compiler loading failed, aborting. Error: Cannot load library "libopenvino_intel_npu_compiler_loader.so"',
        ),
        (QUEUE, "[GPU] clFlush, error code: -36 CL_INVALID_COMMAND_QUEUE"),
        (BUILD, "[GPU] ProgramBuilder build failed! [GPU] clFlush, error code: -5 CL_OUT_OF_RESOURCES"),
        ("Exception from src/a.cpp:1:\nCheck 'x > 0' failed at src/b.cpp:2:\n\n\n", "Check 'x > 0' failed at src/b.cpp:2"),
        ("\tOne\n\n  two\tthree  \nFour", "One two three. Four"),
        ("", "RuntimeError"),
    ],
)
def test_the_whole_message_is_kept_but_for_where_it_was_thrown(message: str, said: str) -> None:
    assert what_openvino_says(RuntimeError(message)) == said


@pytest.mark.parametrize(
    "message",
    [
        ALLOCATION,
        BUILD,
        "[GPU] clEnqueueNDRangeKernel, error code: -4 CL_MEM_OBJECT_ALLOCATION_FAILURE",
        "[GPU] clFinish, error code: -5",
        "[GPU] CL_OUT_OF_RESOURCES exception.\n\tDue to a driver bug, any subsequent OpenCL API call may hang.",
        "onednn_verbose,v1,primitive,error,ocl,errcode -6,CL_OUT_OF_HOST_MEMORY,src/gpu/intel/ocl/ocl_gpu_engine.cpp:261",
        "L0 zeMemAllocDevice result: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, code 0x70000003 - insufficient device memory",
        "std::bad_alloc",
    ],
)
def test_a_lack_of_memory_is_told_from_other_failures(message: str) -> None:
    with pytest.raises(NoRoomError, match=r"^GPU\.0 cannot: "), explaining("GPU.0 cannot"):
        raise RuntimeError(message)


@pytest.mark.parametrize("message", [STREAMS, QUEUE, "[GPU] clEnqueueNDRangeKernel, error code: -52", "error code: -54"])
def test_other_failures_are_not_taken_for_a_lack_of_memory(message: str) -> None:
    with pytest.raises(DeviceError) as caught, explaining("GPU.0 cannot"):
        raise RuntimeError(message)
    assert type(caught.value) is DeviceError


def test_memory_that_python_lacks_is_a_lack_of_memory() -> None:
    with pytest.raises(NoRoomError), explaining("GPU.0 cannot"):
        raise MemoryError
