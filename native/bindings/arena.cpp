// Runs a Python function in a oneTBB arena that has one thread.
//
// OpenVINO's CPU plugin divides the work of a kernel among the threads of the arena in which the model is compiled, even if
// inference runs on one thread. In an arena of one thread, no work is divided, and small kernels take half of the time. The
// library is the one that OpenVINO has loaded. Its functions are looked up by name. Code that is compiled with the headers of
// any oneTBB 2021 or later works with every later version (https://oneapi-src.github.io/oneTBB/, "Compatibility"), so the
// layout of `Arena` matches the beginning of `task_arena_base`.
#include <dlfcn.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "bindings/lock.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

struct Arena {
    std::uintptr_t version_and_traits = 0;
    int initialized = 0;
    void* arena = nullptr;
    int max_concurrency = 1;
    unsigned reserved_slots = 1;
    int priority = 0x7fffffff / 4 * 2;                          // normal
    int numa_node = -1, core_type = -1, threads_per_core = -1;  // any
    std::byte room[128] = {};                                   // for fields of later versions
};

struct Delegate {
    virtual bool operator()() const = 0;
    virtual ~Delegate() = default;
};

struct Call final : Delegate {
    explicit Call(nb::callable what) : function(std::move(what)) {}
    bool operator()() const override {
        const Held gil;
        try {
            result = function();
        } catch (nb::python_error& error) {
            failure = nb::borrow(error.value());
        }
        return true;
    }
    nb::callable function;
    mutable nb::object result, failure;
};

template <class Function>
Function* found(void* library, const char* name) {
    return reinterpret_cast<Function*>(dlsym(library, name));
}

/// Run a function in an arena of one thread, and return its result.
///
/// If `library` is not loaded or lacks a function, the function runs without an arena.
nb::object in_arena_of_one(const char* library, nb::typed<nb::callable, nb::object()> function) {
    void* const tbb = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (!tbb) return function();
    auto* const initialize = found<void(Arena&)>(tbb, "_ZN3tbb6detail2r110initializeERNS0_2d115task_arena_baseE");
    auto* const execute =
        found<void(Arena&, Delegate&)>(tbb, "_ZN3tbb6detail2r17executeERNS0_2d115task_arena_baseERNS2_13delegate_baseE");
    auto* const threads = found<int(const Arena*)>(tbb, "_ZN3tbb6detail2r115max_concurrencyEPKNS0_2d115task_arena_baseE");
    auto* const terminate = found<void(Arena&)>(tbb, "_ZN3tbb6detail2r19terminateERNS0_2d115task_arena_baseE");
    if (!initialize || !execute || !threads || !terminate) return function();
    Call call(std::move(function));
    {
        const Released no_gil;
        Arena arena;  // one for each call: threads that share an arena would run each other's functions
        initialize(arena);
        if (threads(&arena) == 1) {
            execute(arena, call);
        } else {
            call();
        }
        terminate(arena);
    }
    if (call.failure.is_valid()) {
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(call.failure.ptr())), call.failure.ptr());
        throw nb::python_error();
    }
    return call.result;
}

}  // namespace

void bind_arena(nb::module_& module) {
    module.def("in_arena_of_one", &in_arena_of_one, "library"_a, "function"_a,
               "Run a function in an arena of one thread of the oneTBB at a path, if that is loaded; return what it returns.");
}

}  // namespace placeit
