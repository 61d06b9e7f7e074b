// The executor of the bindings, and helpers that bindings share.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "bindings/exclusive.hpp"
#include "bindings/lock.hpp"
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
        const Released no_gil;
        leave();
    }
    std::unordered_map<Index, std::unique_ptr<Call>> calls;  // by node; their addresses are the arguments of entries
    Use use;                                                 // of the machine, for good
};

/// Let the interpreter run signal handlers, if this is its main thread.
inline void look() {
    const Held gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace placeit
