// The executor of the bindings, and helpers that bindings share.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/exclusive.hpp"
#include "executor/executor.hpp"
#include "executor/lane.hpp"

namespace placeit {

namespace nb = nanobind;

struct PlanExecutor;

/// A Python function that runs a node, or that starts it and gets a Report to call at the end; with its last error.
struct Call {
    PlanExecutor& owner;
    Index node;
    nb::callable function;
    nb::object error;

    static int run(void* argument);
    static int start(void* argument);
};

struct PlanExecutor : Executor {
    PlanExecutor(const std::shared_ptr<Exclusive<Machine>>& machine, const std::vector<std::shared_ptr<Lane>>& lanes,
                 Span<const double> slowdown)
        : Executor(machine, lanes, slowdown), use(*machine, "The machine") {}
    ~PlanExecutor() {
        const nb::gil_scoped_release no_gil;
        leave();
    }
    std::unordered_map<Index, std::unique_ptr<Call>> calls;  // by node; their addresses are the arguments of entries
    Use use;                                                 // of the machine, for good
};

// A thread that takes the interpreter's lock once the interpreter exits is ended inside that call, which ends the process with
// an abort where frames of C++ are below. So such threads, which are daemons, wait for ever.
inline std::atomic<bool> exiting{false};    // for threads that wait for a run
inline std::atomic<bool> leaving{false};    // for threads of lanes, which have ended their runs by then
inline std::atomic<int> entering{0};        // threads of lanes that hold the interpreter's lock, or are about to
inline thread_local bool unlocked = false;  // by a thread of Python that waits or works here

inline void enter() {
    ++entering;
    if (!leaving) return;
    --entering;
    while (true) pause();
}

/// Releases the interpreter's lock while a thread waits for a run.
class Aside {
public:
    Aside() : state_(PyEval_SaveThread()) { unlocked = true; }
    ~Aside() {
        while (exiting) pause();
        unlocked = false;
        PyEval_RestoreThread(state_);
    }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

private:
    PyThreadState* state_;
};

/// Releases the interpreter's lock while the thread of a lane works.
class Unheld {
public:
    Unheld() : state_(PyEval_SaveThread()) { unlocked = true; }
    ~Unheld() {
        enter();
        unlocked = false;
        PyEval_RestoreThread(state_);
        --entering;
    }
    Unheld(const Unheld&) = delete;
    Unheld& operator=(const Unheld&) = delete;

private:
    PyThreadState* state_;
};

/// Holds the interpreter's lock on any thread, which may hold it already.
class Held {
public:
    Held() : nested_(!unlocked && PyGILState_GetThisThreadState() != nullptr), unlocked_(std::exchange(unlocked, false)) {
        if (!nested_) enter();
        state_ = PyGILState_Ensure();
    }
    ~Held() {
        PyGILState_Release(state_);
        if (!nested_) --entering;
        unlocked = unlocked_;
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

private:
    bool nested_, unlocked_;
    PyGILState_STATE state_;
};

/// Let the interpreter run signal handlers, if this is its main thread.
inline void look() {
    const Held gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace placeit
