/* A libOpenCL.so.1 that shows this machine's CPU as Intel GPUs.
 *
 * Every call goes on to Intel's OpenCL runtime for CPUs, libintelocl.so, whose path is the macro RUNTIME. On the way, answers
 * about the device become an integrated Intel GPU's answers, and programs and kernel launches are changed where a CPU's
 * sub-groups differ from a GPU's. OpenVINO's GPU plugin then compiles its own kernels and computes with them.
 *
 * Environment:
 *   EMULATED_GPUS      number of GPUs to show, 1 to 8 (default 2); all of them are the same CPU
 *   EMULATED_GPU_LOG   file to append to: each program build with its seconds, and each call that failed here
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- What is needed of CL/cl.h and CL/cl_ext.h, under their names */

typedef int32_t cl_int;
typedef uint32_t cl_uint, cl_bool;
typedef uint64_t cl_ulong, cl_bitfield, cl_properties;
typedef struct platform *cl_platform_id;
typedef struct device *cl_device_id;
typedef struct context *cl_context;
typedef struct queue *cl_command_queue;
typedef struct program *cl_program;
typedef struct kernel *cl_kernel;
typedef struct event *cl_event;

enum {
    CL_SUCCESS = 0,
    CL_DEVICE_NOT_FOUND = -1,
    CL_INVALID_VALUE = -30,
    CL_INVALID_WORK_GROUP_SIZE = -54,
    CL_INVALID_OPERATION = -59,
};

enum {
    CL_PLATFORM_NAME = 0x0902,
    CL_PLATFORM_VENDOR = 0x0903,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_VENDOR_ID = 0x1001,
    CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_NAME = 0x102B,
    CL_DEVICE_VENDOR = 0x102C,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_VERSION = 0x102F,
    CL_DEVICE_EXTENSIONS = 0x1030,
    CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    CL_DEVICE_PARENT_DEVICE = 0x1042,
    CL_DEVICE_PARTITION_MAX_SUB_DEVICES = 0x1043,
    CL_DEVICE_UUID_KHR = 0x106A,
    CL_DEVICE_LUID_VALID_KHR = 0x106C,
    CL_DEVICE_LUID_KHR = 0x106D,
    CL_CONTEXT_DEVICES = 0x1081,
    CL_QUEUE_CONTEXT = 0x1090,
    CL_QUEUE_DEVICE = 0x1091,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_PROGRAM_CONTEXT = 0x1161,
    CL_PROGRAM_DEVICES = 0x1163,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_KERNEL_FUNCTION_NAME = 0x1190,
    CL_KERNEL_REFERENCE_COUNT = 0x1192,
    CL_KERNEL_PROGRAM = 0x1194,
    CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108,
    CL_DEVICE_PCI_BUS_INFO_KHR = 0x410F,
    CL_DEVICE_IP_VERSION_INTEL = 0x4250,
    CL_DEVICE_ID_INTEL = 0x4251,
    CL_DEVICE_NUM_SLICES_INTEL = 0x4252,
    CL_DEVICE_NUM_SUB_SLICES_PER_SLICE_INTEL = 0x4253,
    CL_DEVICE_NUM_EUS_PER_SUB_SLICE_INTEL = 0x4254,
    CL_DEVICE_NUM_THREADS_PER_EU_INTEL = 0x4255,
    CL_DEVICE_FEATURE_CAPABILITIES_INTEL = 0x4256,
};

enum { CL_DEVICE_TYPE_DEFAULT = 1 << 0, CL_DEVICE_TYPE_GPU = 1 << 2, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE = 1 << 0 };

cl_int clGetPlatformIDs(cl_uint size, cl_platform_id *, cl_uint *);
cl_int clGetDeviceIDs(cl_platform_id, cl_bitfield type, cl_uint size, cl_device_id *, cl_uint *);
cl_int clGetDeviceInfo(cl_device_id, cl_uint what, size_t, void *, size_t *);
cl_int clRetainProgram(cl_program);
cl_int clReleaseProgram(cl_program);
cl_int clGetKernelInfo(cl_kernel, cl_uint what, size_t, void *, size_t *);

/* ---- The runtime, and functions that only pass the call on to it */

static void *runtime;
static FILE *logfile;

#define REAL(function) ((__typeof__(&(function)))dlsym(runtime, #function))

#define PASSED_ON(X) \
    X(clCreateBuffer) X(clCreateBufferWithProperties) X(clCreateImage) X(clCreateImage2D) X(clCreateImage3D) \
    X(clCreateImageWithProperties) X(clCreatePipe) X(clCreateSampler) X(clCreateSamplerWithProperties) X(clCreateSubBuffer) \
    X(clCreateUserEvent) X(clEnqueueBarrier) X(clEnqueueBarrierWithWaitList) X(clEnqueueCopyBuffer) X(clEnqueueCopyBufferRect) \
    X(clEnqueueCopyBufferToImage) X(clEnqueueCopyImage) X(clEnqueueCopyImageToBuffer) X(clEnqueueFillBuffer) X(clEnqueueFillImage) \
    X(clEnqueueMapBuffer) X(clEnqueueMapImage) X(clEnqueueMarker) X(clEnqueueMarkerWithWaitList) X(clEnqueueMigrateMemObjects) \
    X(clEnqueueReadBuffer) X(clEnqueueReadBufferRect) X(clEnqueueReadImage) X(clEnqueueSVMFree) X(clEnqueueSVMMap) \
    X(clEnqueueSVMMemFill) X(clEnqueueSVMMemcpy) X(clEnqueueSVMMigrateMem) X(clEnqueueSVMUnmap) X(clEnqueueUnmapMemObject) \
    X(clEnqueueWaitForEvents) X(clEnqueueWriteBuffer) X(clEnqueueWriteBufferRect) X(clEnqueueWriteImage) X(clFinish) X(clFlush) \
    X(clGetEventInfo) X(clGetEventProfilingInfo) X(clGetImageInfo) X(clGetKernelArgInfo) X(clGetKernelInfo) X(clGetMemObjectInfo) \
    X(clGetPipeInfo) X(clGetPlatformIDs) X(clGetSamplerInfo) X(clGetSupportedImageFormats) X(clReleaseCommandQueue) \
    X(clReleaseContext) X(clReleaseEvent) X(clReleaseMemObject) X(clReleaseProgram) X(clReleaseSampler) X(clRetainCommandQueue) \
    X(clRetainContext) X(clRetainEvent) X(clRetainKernel) X(clRetainMemObject) X(clRetainProgram) X(clRetainSampler) X(clSVMAlloc) \
    X(clSVMFree) X(clSetContextDestructorCallback) X(clSetEventCallback) X(clSetKernelArg) X(clSetKernelArgSVMPointer) \
    X(clSetKernelExecInfo) X(clSetMemObjectDestructorCallback) X(clSetProgramReleaseCallback) X(clSetProgramSpecializationConstant) \
    X(clSetUserEventStatus) X(clUnloadCompiler) X(clUnloadPlatformCompiler) X(clWaitForEvents)

#define PASS_ON(function) \
    __attribute__((used)) static void *real_##function; \
    __attribute__((naked)) void pass_on_##function(void) __asm__(#function); \
    void pass_on_##function(void) { __asm__("jmp *real_" #function "(%rip)"); }
PASSED_ON(PASS_ON)

static cl_int missing(void) { return CL_INVALID_OPERATION; }

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    if (!logfile) return;
    va_list arguments;
    va_start(arguments, format);
    flockfile(logfile);
    vfprintf(logfile, format, arguments);
    fputc('\n', logfile);
    fflush(logfile);
    funlockfile(logfile);
    va_end(arguments);
}

static cl_int noted(const char *call, cl_int error) {
    if (error) note("%s: error %d", call, error);
    return error;
}

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* ---- The GPUs: handles of this library's own, which all stand for the runtime's one device */

enum { MOST_GPUS = 8 };
static struct device { int unused; } gpus[MOST_GPUS];
static cl_uint gpu_count = 2;
static cl_device_id processor;

static int index_of(cl_device_id gpu) { return gpu >= gpus && gpu < gpus + MOST_GPUS ? (int)(gpu - gpus) : 0; }

static void find_processor(void) {
    cl_platform_id platform;
    if (!runtime) return;
    cl_int error = REAL(clGetPlatformIDs)(1, &platform, NULL);
    if (!error) error = REAL(clGetDeviceIDs)(platform, 0xFFFFFFFF, 1, &processor, NULL);
    if (noted("finding the CPU", error)) gpu_count = 0;
}

cl_int clGetDeviceIDs(cl_platform_id platform, cl_bitfield type, cl_uint size, cl_device_id *found, cl_uint *count) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)platform;
    pthread_once(&once, find_processor);
    cl_uint matching = type & (CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_DEFAULT) ? gpu_count : 0;
    for (cl_uint i = 0; found && i < size && i < matching; i++) found[i] = gpus + i;
    if (count) *count = matching;
    return matching ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

cl_int clRetainDevice(cl_device_id gpu) { (void)gpu; return CL_SUCCESS; }
cl_int clReleaseDevice(cl_device_id gpu) { (void)gpu; return CL_SUCCESS; }

/* ---- What the GPUs say they are: an integrated GPU of generation 12, for which OpenVINO takes its kernels in OpenCL C */

static cl_int answer(const void *value, size_t length, size_t size, void *result, size_t *needed) {
    if (result && size < length) return CL_INVALID_VALUE;
    if (result) memcpy(result, value, length);
    if (needed) *needed = length;
    return CL_SUCCESS;
}

static cl_int answer_text(const char *text, size_t size, void *result, size_t *needed) {
    return answer(text, strlen(text) + 1, size, result, needed);
}

#define ANSWER(type, ...) return answer(&(type){__VA_ARGS__}, sizeof(type), size, result, needed)
#define ANSWER_TEXT(text) return answer_text(text, size, result, needed)

static cl_int answer_extensions(size_t size, void *result, size_t *needed) {
    static const char *const further[] = {
        "cl_khr_subgroups", "cl_intel_subgroups", "cl_intel_subgroups_short", "cl_intel_subgroups_char", "cl_intel_subgroups_long",
        "cl_intel_required_subgroup_size", "cl_intel_unified_shared_memory", "cl_intel_device_attribute_query",
        "cl_khr_device_uuid", "cl_khr_pci_bus_info",
    };
    size_t length = 0;
    cl_int error = REAL(clGetDeviceInfo)(processor, CL_DEVICE_EXTENSIONS, 0, NULL, &length);
    if (error) return error;
    char *all = calloc(1, length + 512);
    REAL(clGetDeviceInfo)(processor, CL_DEVICE_EXTENSIONS, length, all, NULL);
    for (size_t i = 0; i < sizeof further / sizeof *further; i++) {
        char word[64];
        snprintf(word, sizeof word, "%s ", further[i]);
        if (strstr(all, word)) continue;
        if (*all && all[strlen(all) - 1] != ' ') strcat(all, " ");
        strcat(all, word);
    }
    error = answer_text(all, size, result, needed);
    free(all);
    return error;
}

cl_int clGetPlatformInfo(cl_platform_id platform, cl_uint what, size_t size, void *result, size_t *needed) {
    switch (what) {
    case CL_PLATFORM_NAME: ANSWER_TEXT("Intel(R) OpenCL Graphics");
    case CL_PLATFORM_VENDOR: ANSWER_TEXT("Intel(R) Corporation");
    default: return REAL(clGetPlatformInfo)(platform, what, size, result, needed);
    }
}

cl_int clGetDeviceInfo(cl_device_id gpu, cl_uint what, size_t size, void *result, size_t *needed) {
    struct uuid { char bytes[16]; } uuid = {"emulated-gpu"};
    char name[64];
    int index = index_of(gpu);
    switch (what) {
    case CL_DEVICE_TYPE: ANSWER(cl_bitfield, CL_DEVICE_TYPE_GPU);
    case CL_DEVICE_VENDOR_ID: ANSWER(cl_uint, 0x8086);
    case CL_DEVICE_VENDOR: ANSWER_TEXT("Intel(R) Corporation");
    case CL_DEVICE_NAME:
        snprintf(name, sizeof name, "Intel(R) UHD Graphics (emulated on the CPU, #%d)", index);
        ANSWER_TEXT(name);
    case CL_DRIVER_VERSION: ANSWER_TEXT("25.05.32567");
    case CL_DEVICE_VERSION: ANSWER_TEXT("OpenCL 3.0 NEO ");
    case CL_DEVICE_EXTENSIONS: return answer_extensions(size, result, needed);
    case CL_DEVICE_HOST_UNIFIED_MEMORY: ANSWER(cl_bool, 1);
    case CL_DEVICE_PARTITION_MAX_SUB_DEVICES: ANSWER(cl_uint, 0);
    case CL_DEVICE_PARENT_DEVICE: ANSWER(cl_device_id, NULL);
    case CL_DEVICE_MAX_COMPUTE_UNITS: ANSWER(cl_uint, 24);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE: ANSWER(size_t, 256);
    case CL_DEVICE_LOCAL_MEM_SIZE: ANSWER(cl_ulong, 65536);
    case CL_DEVICE_SUB_GROUP_SIZES_INTEL: { typedef struct { size_t of[3]; } sizes; ANSWER(sizes, {8, 16, 32}); }
    case CL_DEVICE_IP_VERSION_INTEL: ANSWER(cl_uint, 12u << 22); /* 12.0.0 */
    case CL_DEVICE_ID_INTEL: ANSWER(cl_uint, 0x9a49);
    case CL_DEVICE_NUM_SLICES_INTEL: ANSWER(cl_uint, 1);
    case CL_DEVICE_NUM_SUB_SLICES_PER_SLICE_INTEL: ANSWER(cl_uint, 3);
    case CL_DEVICE_NUM_EUS_PER_SUB_SLICE_INTEL: ANSWER(cl_uint, 8);
    case CL_DEVICE_NUM_THREADS_PER_EU_INTEL: ANSWER(cl_uint, 7);
    case CL_DEVICE_FEATURE_CAPABILITIES_INTEL: ANSWER(cl_bitfield, 0); /* neither DP4A nor DPAS */
    case CL_DEVICE_UUID_KHR: uuid.bytes[15] = (char)index; return answer(&uuid, sizeof uuid, size, result, needed);
    case CL_DEVICE_LUID_KHR: ANSWER(cl_ulong, (cl_ulong)index);
    case CL_DEVICE_LUID_VALID_KHR: ANSWER(cl_bool, 0);
    case CL_DEVICE_PCI_BUS_INFO_KHR: { typedef struct { cl_uint domain, bus, device, function; } pci; ANSWER(pci, 0, index, 2, 0); }
    default: return REAL(clGetDeviceInfo)(processor, what, size, result, needed);
    }
}

/* ---- Calls that take or return a device. A context remembers for which GPU it was made; OpenVINO's have one each */

static struct origin { cl_context context; cl_device_id gpu; struct origin *next; } *origins;
static pthread_mutex_t origins_lock = PTHREAD_MUTEX_INITIALIZER;

static struct origin *origin_of(cl_context context) {
    struct origin *origin = origins;
    while (origin && origin->context != context) origin = origin->next;
    return origin;
}

static cl_int answer_gpu(cl_context context, size_t size, void *result, size_t *needed) {
    pthread_mutex_lock(&origins_lock);
    struct origin *origin = origin_of(context);
    cl_device_id gpu = origin ? origin->gpu : gpus;
    pthread_mutex_unlock(&origins_lock);
    ANSWER(cl_device_id, gpu);
}

cl_context clCreateContext(const intptr_t *properties, cl_uint count, const cl_device_id *devices,
                           void (*told)(const char *, const void *, size_t, void *), void *data, cl_int *error) {
    if (count != 1 || !devices) {
        if (error) *error = CL_INVALID_VALUE;
        return NULL;
    }
    cl_context context = REAL(clCreateContext)(properties, 1, &processor, told, data, error);
    if (!context) return NULL;
    pthread_mutex_lock(&origins_lock);
    struct origin *origin = origin_of(context); /* the address may belong to a context that was released */
    if (!origin) {
        origin = malloc(sizeof *origin);
        *origin = (struct origin){context, NULL, origins};
        origins = origin;
    }
    origin->gpu = devices[0];
    pthread_mutex_unlock(&origins_lock);
    return context;
}

cl_int clGetContextInfo(cl_context context, cl_uint what, size_t size, void *result, size_t *needed) {
    if (what == CL_CONTEXT_DEVICES) return answer_gpu(context, size, result, needed);
    return REAL(clGetContextInfo)(context, what, size, result, needed);
}

cl_int clGetCommandQueueInfo(cl_command_queue queue, cl_uint what, size_t size, void *result, size_t *needed) {
    cl_context context;
    if (what != CL_QUEUE_DEVICE) return REAL(clGetCommandQueueInfo)(queue, what, size, result, needed);
    cl_int error = REAL(clGetCommandQueueInfo)(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    return error ? error : answer_gpu(context, size, result, needed);
}

cl_int clGetProgramInfo(cl_program program, cl_uint what, size_t size, void *result, size_t *needed) {
    cl_context context;
    if (what != CL_PROGRAM_DEVICES) return REAL(clGetProgramInfo)(program, what, size, result, needed);
    cl_int error = REAL(clGetProgramInfo)(program, CL_PROGRAM_CONTEXT, sizeof context, &context, NULL);
    return error ? error : answer_gpu(context, size, result, needed);
}

cl_int clGetProgramBuildInfo(cl_program program, cl_device_id gpu, cl_uint what, size_t size, void *result, size_t *needed) {
    (void)gpu;
    return REAL(clGetProgramBuildInfo)(program, processor, what, size, result, needed);
}

cl_int clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id gpu, cl_uint what, size_t size, void *result, size_t *needed) {
    (void)gpu;
    return REAL(clGetKernelWorkGroupInfo)(kernel, processor, what, size, result, needed);
}

cl_int clGetDeviceAndHostTimer(cl_device_id gpu, cl_ulong *device_time, cl_ulong *host_time) {
    (void)gpu;
    return REAL(clGetDeviceAndHostTimer)(processor, device_time, host_time);
}

cl_int clCreateSubDevices(cl_device_id gpu, const intptr_t *properties, cl_uint size, cl_device_id *devices, cl_uint *count) {
    (void)gpu, (void)properties, (void)size, (void)devices, (void)count;
    return CL_INVALID_VALUE;
}

cl_command_queue clCreateCommandQueueWithProperties(cl_context context, cl_device_id gpu, const cl_properties *properties,
                                                    cl_int *error) {
    /* Every queue runs its commands in order. Where several threads wait for queues that may reorder them, Intel's runtime
     * deadlocks (2026.2): a thread that waits runs the task of such a queue, and within it a wait for that same task. Priority,
     * throttle and family of a queue, which only a GPU's driver knows, are left out. */
    cl_properties known[3] = {0};
    (void)gpu;
    for (const cl_properties *p = properties; p && *p; p += 2)
        if (*p == CL_QUEUE_PROPERTIES) {
            known[0] = p[0];
            known[1] = p[1] & ~(cl_properties)CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
        }
    return REAL(clCreateCommandQueueWithProperties)(context, processor, known, error);
}

typedef void *allocate(cl_context, cl_device_id, const cl_properties *, size_t, cl_uint, cl_int *);
static allocate *real_device_allocate, *real_shared_allocate;

static void *device_allocate(cl_context context, cl_device_id gpu, const cl_properties *properties, size_t bytes,
                             cl_uint alignment, cl_int *error) {
    (void)gpu;
    return real_device_allocate(context, processor, properties, bytes, alignment, error);
}

static void *shared_allocate(cl_context context, cl_device_id gpu, const cl_properties *properties, size_t bytes,
                             cl_uint alignment, cl_int *error) {
    return real_shared_allocate(context, gpu ? processor : NULL, properties, bytes, alignment, error);
}

void *clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char *name) {
    void *function = REAL(clGetExtensionFunctionAddressForPlatform)(platform, name);
    if (!function) function = dlsym(runtime, name);
    if (function && !strcmp(name, "clDeviceMemAllocINTEL")) {
        real_device_allocate = (allocate *)function;
        return (void *)device_allocate;
    }
    if (function && !strcmp(name, "clSharedMemAllocINTEL")) {
        real_shared_allocate = (allocate *)function;
        return (void *)shared_allocate;
    }
    return function;
}

/* ---- Programs and kernels
 *
 * Intel's CPU runtime forms sub-groups along dimension 0 only. A GPU forms them of consecutive linear local ids, and OpenVINO's
 * kernels rely on that with work-groups such as (1, 1, 16). So every kernel is started in one dimension: its work-groups keep
 * their size and order, and what the kernel asks for its ids is computed from the linear ones. The sizes that it was started
 * with travel in the global offset, 21 bits for each dimension; OpenVINO sets no offset.
 *
 * OpenVINO's RMS normalization squares by native_powr. An Intel GPU takes the magnitude of what it raises; the CPU runtime
 * computes NaN of negative numbers. */

enum { SIZE_BITS = 21 };

static const char ids[] =
    "inline ulong gpu_pick(ulong packed, uint d) { return d > 2 ? 1 : (packed >> (21 * d)) & 0x1fffff; }\n"
    "inline size_t gpu_global_size(uint d) { return gpu_pick(get_global_offset(0), d); }\n"
    "inline size_t gpu_local_size(uint d) { return gpu_pick(get_global_offset(1), d); }\n"
    "inline size_t gpu_groups(uint d) { return (uint)gpu_global_size(d) / (uint)gpu_local_size(d); }\n"
    "inline size_t gpu_along(uint n, uint x, uint y, uint d) {\n"
    "  return d == 0 ? n % x : d == 1 ? n / x % y : d == 2 ? n / (x * y) : 0;\n"
    "}\n"
    "inline size_t gpu_local_id(uint d) { return gpu_along(get_local_id(0), gpu_local_size(0), gpu_local_size(1), d); }\n"
    "inline size_t gpu_group_id(uint d) { return gpu_along(get_group_id(0), gpu_groups(0), gpu_groups(1), d); }\n"
    "inline size_t gpu_global_id(uint d) { return gpu_group_id(d) * gpu_local_size(d) + gpu_local_id(d); }\n"
    "inline size_t gpu_linear_id(void) {\n"
    "  return (gpu_global_id(2) * gpu_global_size(1) + gpu_global_id(1)) * gpu_global_size(0) + gpu_global_id(0);\n"
    "}\n"
    "#define get_global_id(d) gpu_global_id(d)\n"
    "#define get_local_id(d) gpu_local_id(d)\n"
    "#define get_group_id(d) gpu_group_id(d)\n"
    "#define get_global_size(d) gpu_global_size(d)\n"
    "#define get_local_size(d) gpu_local_size(d)\n"
    "#define get_enqueued_local_size(d) gpu_local_size(d)\n"
    "#define get_num_groups(d) gpu_groups(d)\n"
    "#define get_global_linear_id() gpu_linear_id()\n"
    "#define get_global_offset(d) ((size_t)0)\n"
    "#define native_powr(x, y) pow(fabs(x), y)\n"
    "#define reqd_work_group_size(x, y, z) reqd_work_group_size((x) * (y) * (z), 1, 1)\n";

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts, const size_t *lengths, cl_int *error) {
    const char **all = malloc((count + 1) * sizeof *all);
    size_t *sizes = malloc((count + 1) * sizeof *sizes);
    all[0] = ids;
    sizes[0] = strlen(ids);
    for (cl_uint i = 0; i < count; i++) {
        all[i + 1] = texts[i];
        sizes[i + 1] = lengths && lengths[i] ? lengths[i] : strlen(texts[i]);
    }
    cl_program program = REAL(clCreateProgramWithSource)(context, count + 1, all, sizes, error);
    free(all);
    free(sizes);
    return program;
}

cl_program clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices, const size_t *lengths,
                                     const unsigned char **binaries, cl_int *statuses, cl_int *error) {
    (void)devices;
    return REAL(clCreateProgramWithBinary)(context, count, &processor, lengths, binaries, statuses, error);
}

cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                      void (*told)(cl_program, void *), void *data) {
    (void)devices;
    double begin = seconds();
    cl_int error = REAL(clBuildProgram)(program, count ? 1 : 0, count ? &processor : NULL, options, told, data);
    note("clBuildProgram: error %d, %.3f s", error, seconds() - begin);
    if (error && logfile) {
        char text[8192] = "(too long)";
        REAL(clGetProgramBuildInfo)(program, processor, CL_PROGRAM_BUILD_LOG, sizeof text, text, NULL);
        note("%s", text);
    }
    return error;
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint wait_count, const cl_event *waits,
                              cl_event *event) {
    size_t g[3] = {1, 1, 1}, l[3] = {1, 1, 1}, groups = 1, packed[3] = {0, 0, 0};
    (void)offset;
    for (cl_uint i = 0; i < dimensions; i++) {
        g[i] = global[i];
        if (local) l[i] = local[i];
    }
    for (size_t size = 1; !local && size <= 64; size++)
        if (g[0] % size == 0) l[0] = size;
    for (int i = 0; i < 3; i++) {
        if (!l[i] || g[i] % l[i] || g[i] >> SIZE_BITS) return noted("clEnqueueNDRangeKernel", CL_INVALID_WORK_GROUP_SIZE);
        groups *= g[i] / l[i];
        packed[0] |= g[i] << SIZE_BITS * i;
        packed[1] |= l[i] << SIZE_BITS * i;
    }
    size_t items = l[0] * l[1] * l[2], all[3] = {groups * items, 1, 1}, group[3] = {items, 1, 1};
    cl_int error = REAL(clEnqueueNDRangeKernel)(queue, kernel, 3, packed, all, group, wait_count, waits, event);
    if (error && logfile) {
        char name[256] = "";
        REAL(clGetKernelInfo)(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
        note("clEnqueueNDRangeKernel: error %d, %s, global %zu %zu %zu, local %zu %zu %zu", error, name, g[0], g[1], g[2], l[0],
             l[1], l[2]);
    }
    return error;
}

/* OpenVINO asks a kernel for its program after it has released the program. Intel's CPU runtime has forgotten the handle by then,
 * so each kernel holds a reference to its program until its own last release. */

static cl_kernel holding(cl_kernel kernel) {
    cl_program program;
    if (kernel && !REAL(clGetKernelInfo)(kernel, CL_KERNEL_PROGRAM, sizeof program, &program, NULL)) REAL(clRetainProgram)(program);
    return kernel;
}

cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *error) {
    return holding(REAL(clCreateKernel)(program, name, error));
}

cl_kernel clCloneKernel(cl_kernel kernel, cl_int *error) { return holding(REAL(clCloneKernel)(kernel, error)); }

cl_int clCreateKernelsInProgram(cl_program program, cl_uint size, cl_kernel *kernels, cl_uint *count) {
    cl_uint found = 0;
    cl_int error = REAL(clCreateKernelsInProgram)(program, size, kernels, &found);
    for (cl_uint i = 0; !error && kernels && i < found && i < size; i++) holding(kernels[i]);
    if (count) *count = found;
    return error;
}

cl_int clReleaseKernel(cl_kernel kernel) {
    cl_uint references = 0;
    cl_program program = NULL;
    REAL(clGetKernelInfo)(kernel, CL_KERNEL_REFERENCE_COUNT, sizeof references, &references, NULL);
    if (references == 1) REAL(clGetKernelInfo)(kernel, CL_KERNEL_PROGRAM, sizeof program, &program, NULL);
    cl_int error = REAL(clReleaseKernel)(kernel);
    if (!error && program) REAL(clReleaseProgram)(program);
    return error;
}

/* ---- Start */

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("EMULATED_GPU_LOG"), *count = getenv("EMULATED_GPUS");
    if (path && *path) logfile = fopen(path, "a");
    if (count && *count) gpu_count = atoi(count) < 0 ? 0 : atoi(count) > MOST_GPUS ? MOST_GPUS : atoi(count);

    runtime = dlopen(RUNTIME, RTLD_NOW | RTLD_LOCAL); /* local: OpenVINO has another TBB */
    if (!runtime) {
        fprintf(stderr, "emulated GPU: cannot load Intel's OpenCL runtime: %s\n", dlerror());
        gpu_count = 0;
    }
#define CONNECT(function) \
    real_##function = runtime ? dlsym(runtime, #function) : NULL; \
    if (!real_##function) real_##function = (void *)missing;
    PASSED_ON(CONNECT)
}
