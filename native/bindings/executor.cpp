#include "executor/executor.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/exclusive.hpp"
#include "bindings/plan_executor.hpp"
#include "executor/bell.hpp"
#include "executor/clock.hpp"
#include "executor/lane.hpp"
#include "executor/spend.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

/// A job in Python for a lane; an exception ends the thread.
class Job final : public Work {
public:
    explicit Job(nb::callable what) : what_(std::move(what)) {}

    void run() override {
        const Held gil;
        const std::unique_ptr<Job> self(this);
        what_();
    }
    void drop() override {
        const Held gil;
        delete this;
    }

private:
    nb::callable what_;
};

/// An object that a device calls to report the end of a node, once.
class Report {
public:
    Report(PlanExecutor& owner, Index node)
        : executor_(nb::find(owner)), owner_(owner), node_(node), serial_(owner.serial(node)) {}
    Report(const Report&) = delete;
    Report& operator=(const Report&) = delete;
    ~Report() {
        if (told_) return;
        try {
            const double time = now();
            tell(time, time, nb::module_::import_("builtins").attr("RuntimeError")("its end was never reported"));
        } catch (...) {  // out of memory
            PyErr_Clear();
        }
    }

    bool tell(double start, double finish, const nb::object& error) {
        if (std::exchange(told_, true)) return false;
        const auto call = owner_.calls.find(node_);
        if (!error.is_none() && call != owner_.calls.end()) call->second->error = error;
        const Released no_gil;
        return owner_.report(node_, serial_, start, finish, error.is_none() ? 0 : 1);
    }

private:
    nb::object executor_;  // keeps it alive
    PlanExecutor& owner_;
    Index node_;
    std::uint64_t serial_;
    bool told_ = false;
};

}  // namespace

int Call::run(void* argument) {
    auto& call = *static_cast<Call*>(argument);
    const Held gil;
    try {
        call.function();
        return 0;
    } catch (nb::python_error& error) {
        call.error = nb::borrow(error.value());
        return 1;
    }
}

int Call::start(void* argument) {
    auto& call = *static_cast<Call*>(argument);
    const Held gil;
    const nb::object report = nb::cast(new Report(call.owner, call.node), nb::rv_policy::take_ownership);
    try {
        call.function(report);
    } catch (nb::python_error& error) {
        nb::cast<Report&>(report).tell(now(), now(), nb::borrow(error.value()));
    }
    return 0;
}

namespace {

/// Returns the slots of the requests that begin at once, after checks of their number and of the number that follow.
std::vector<Index> first_slots(const PlanExecutor& executor, Index requests, std::int64_t waiting) {
    if (requests < 0 || requests > executor.slots()) throw nb::value_error("'requests' are more than there are slots.");
    if (waiting < 0) throw nb::value_error("'waiting' must not be negative.");
    std::vector<Index> slots(at(requests));
    std::iota(slots.begin(), slots.end(), 0);
    return slots;
}

void set(PlanExecutor& executor, Index node, const Step& step) {
    check_index("node", node, executor.nodes());
    if (step.lane != -1) check_index("lane", step.lane, executor.lanes());
    executor.set(node, step);
}

void set_call(PlanExecutor& executor, Index node, Index lane, nb::callable function, bool asynchronous, bool lendable = false) {
    auto call = std::make_unique<Call>(Call{executor, node, std::move(function), nb::object()});
    set(executor, node, {lane, {asynchronous ? &Call::start : &Call::run, call.get()}, 0.0, asynchronous, lendable});
    executor.calls.insert_or_assign(node, std::move(call));
}

}  // namespace

void bind_executor(nb::module_& module) {
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::system_error& error) {
            errno = error.code().value();
            PyErr_SetFromErrno(PyExc_OSError);
        }
    });

    nb::class_<Bell>(module, "Bell", "A counter of the kernel to poll, closed when neither Python nor a run refers to it.")
        .def(nb::init<>())
        .def_prop_ro("descriptor", &Bell::descriptor)
        .def("ring", &Bell::ring);

    nb::class_<Lane>(module, "Lane",
                     "Work for the thread of a device or a link, which runs it one by one, by priority and in order.")
        .def(nb::init<>())
        .def(
            "submit",
            [](Lane& lane, nb::typed<nb::callable, nb::object()> job) {
                if (lane.add(*new Job(std::move(job)))) lane.wake();
            },
            "job"_a, "Queue a function, which must not raise: that would end the thread.")
        .def(
            "work",
            [](Lane& lane) {
                const Released unheld;
                lane.work();
            },
            "Run queued work, until it is closed and nothing is left: for its thread.")
        .def(
            "close", [](Lane& lane, const nb::object&) { lane.close(); }, "reason"_a = nb::none(),
            "Have `work` return once nothing is queued.")
        .def_prop_ro("ended", &Lane::ended, "Whether its thread has left `work`: queued work will not run.")
        .def_prop_ro("spun", &Lane::spun, "Seconds that its thread has spun.")
        .def_prop_ro(
            "begun", [](const Lane& lane) { return lane.begun.load(); }, "How many pieces of work have begun there.")
        .def_prop_rw(
            "lends", [](const Lane& lane) { return lane.lends.load(); },
            [](Lane& lane, double seconds) { lane.lends = seconds; },
            "Seconds of the longest segment that a caller may run in its place.")
        .def_prop_rw(
            "spins", [](const Lane& lane) { return lane.spins.load(); },
            [](Lane& lane, double seconds) { lane.spins = seconds; },
            "Seconds that its thread waits awake before it sleeps, while a core is idle.");

    nb::class_<Ended>(module, "Ended", "A request has ended, successfully unless a node of it has failed.")
        .def_ro("slot", &Ended::slot)
        .def_ro("at", &Ended::at);
    nb::class_<Failed>(module, "Failed", "The first node that failed in a run or, if it has a bell, in a request.")
        .def_ro("node", &Failed::node)
        .def_ro("status", &Failed::status)
        .def_ro("at", &Failed::at);
    nb::class_<Cancelled>(module, "Cancelled", "The run was stopped.").def_ro("at", &Cancelled::at);
    nb::class_<Late>(module, "Late", "The run was not over at its deadline.")
        .def_ro("running", &Late::running, "int64, nodes that had started then, and had not ended.");
    nb::class_<Broken>(module, "Broken", "It is not known any more what is to run.").def_ro("why", &Broken::why);
    nb::enum_<Waited>(module, "Waited", "How waiting for a run has ended.")
        .value("over", Waited::over)
        .value("late", Waited::late)
        .value("inside", Waited::inside)
        .value("gone", Waited::gone);

    nb::class_<Report>(module, "Report", "Called by a device to report the end of a segment or a transfer, on any thread.")
        .def("__call__", &Report::tell, "start"_a, "finish"_a, "error"_a.none(),
             "Report start and finish, in seconds of time.perf_counter, and the error, or None.\n"
             "Returns whether the report was awaited: only the first one of a run is.");

    nb::class_<PlanExecutor>(module, "Executor", "Runs a plan on lanes, one run after another.")
        .def(
            "__init__",
            [](PlanExecutor* self, const std::shared_ptr<Exclusive<Machine>>& rules,
               const std::vector<std::shared_ptr<Lane>>& lanes, const Array<const double>& slowdown) {
                const auto factors = slowdown.vector("slowdown", lanes.size());
                for (const double factor : factors) {
                    if (!(factor >= 0) || std::isinf(factor))
                        throw nb::value_error("'slowdown' holds a number that is no factor.");
                }
                new (self) PlanExecutor(rules, lanes, factors);
            },
            "rules"_a, "lanes"_a, "slowdown"_a)
        .def(
            "set_entry",
            [](PlanExecutor& executor, Index node, Index lane, std::uintptr_t function, std::uintptr_t argument) {
                if (function == 0) throw nb::value_error("'function' must be the address of a C function; got 0.");
                set(executor, node,
                    {lane, {reinterpret_cast<int (*)(void*)>(function), reinterpret_cast<void*>(argument)}, 0.0, false, true});
            },
            "node"_a, "lane"_a, "function"_a, "argument"_a, "Run a segment by a C function, int (*)(void *), and its argument.")
        .def(
            "set_call",
            [](PlanExecutor& executor, Index node, Index lane, nb::typed<nb::callable, nb::object()> run, bool lendable) {
                set_call(executor, node, lane, std::move(run), false, lendable);
            },
            "node"_a, "lane"_a, "run"_a, "lendable"_a = false,
            "Run a segment by a Python function without arguments.\n"
            "'lendable': whether callers may run it on their threads, as it is in C, so that no signal handler interrupts it.")
        .def(
            "set_start",
            [](PlanExecutor& executor, Index node, Index lane, nb::typed<nb::callable, nb::object(Report)> start) {
                set_call(executor, node, lane, std::move(start), true);
            },
            "node"_a, "lane"_a, "start"_a,
            "Start a node by a Python function, which gets a `Report` and has it called when the node has ended.\n"
            "'lane' -1: it is called on the thread that decides to start the node.")
        .def(
            "set_transfer",
            [](PlanExecutor& executor, Index node, Index lane, double seconds) {
                if (!(seconds >= 0) || std::isinf(seconds)) throw nb::value_error("'seconds' must be finite and not negative.");
                check_index("lane", lane, executor.lanes());
                set(executor, node, {lane, {}, seconds});
            },
            "node"_a, "lane"_a, "seconds"_a, "Have a transfer keep a link busy for some seconds.")
        .def(
            "forget",
            [](PlanExecutor& executor, Index slot) {
                check_index("slot", slot, executor.slots());
                const Index count = executor.nodes() / executor.slots();
                for (Index node = slot * count; node < (slot + 1) * count; ++node) {
                    executor.set(node, Step{});
                    executor.calls.erase(node);
                }
            },
            "slot"_a, "Have no node of a slot that is not in flight carried out any more, and release its functions.")
        .def(
            "in_flight",
            [](const PlanExecutor& executor, Index slot) {
                check_index("slot", slot, executor.slots());
                return executor.in_flight(slot);
            },
            "slot"_a, "Return whether a request is in flight in a slot.")
        .def("grow", &PlanExecutor::grow, "slots"_a, "Make room for more slots, in the rules, too.")
        .def(
            "spin", [](PlanExecutor& executor, double seconds) { executor.spin(seconds); }, "seconds"_a,
            "Have callers wait awake for some seconds before they sleep.")
        .def_prop_rw("priority", &PlanExecutor::priority, &PlanExecutor::prioritize,
                     "Of what waits for a lane, the lowest number goes first; for nodes that start from now on.")
        .def(
            "run",
            [](PlanExecutor& executor, Index requests, std::int64_t waiting, double deadline) {
                const std::vector<Index> slots = first_slots(executor, requests, waiting);
                if (std::isnan(deadline)) throw nb::value_error("'deadline' must not be NaN.");
                const Released unheld(exiting);
                return executor.run(slots, waiting, deadline, look);
            },
            "requests"_a, "waiting"_a, "deadline"_a,
            "Run requests in the first slots, and others as these end, and wait for the end of all.")
        .def(
            "begin",
            [](PlanExecutor& executor, Index requests, std::int64_t waiting, double time) {
                const std::vector<Index> slots = first_slots(executor, requests, waiting);
                const Released unheld(exiting);
                executor.begin(slots, waiting, time);
            },
            "requests"_a, "waiting"_a, "time"_a,
            "Begin as `run` does, without waiting; 'time' is now, by the clock of the devices.")
        .def(
            "wait",
            [](PlanExecutor& executor, double deadline) {
                if (std::isnan(deadline)) throw nb::value_error("'deadline' must not be NaN.");
                const Released unheld(exiting);
                return executor.wait(deadline, look);
            },
            "deadline"_a, "Wait for the run to be over; stop it at the deadline.")
        .def(
            "watch",
            [](PlanExecutor& executor, double until) {
                const Released unheld(exiting);
                return executor.watch(until, look);
            },
            "until"_a, "Wait for the run to be over, until some time at most; return whether it is over.")
        .def_prop_ro("inside", &PlanExecutor::inside, "Whether this thread waits for a run, in the middle of a signal handler.")
        .def(
            "open", [](PlanExecutor& executor, std::shared_ptr<Bell> bell) { executor.open(std::move(bell)); }, "bell"_a,
            "Begin a run that requests are added to.")
        .def(
            "admit",
            [](PlanExecutor& executor, Index slot) {
                check_index("slot", slot, executor.slots());
                return executor.admit(slot);  // with the interpreter's lock: taking it back takes longer than this
            },
            "slot"_a, "Begin a request in a slot; False if the run was stopped.")
        .def("admit_no_more", &PlanExecutor::admit_no_more, nb::call_guard<Released>())
        .def("stop", &PlanExecutor::stop, nb::call_guard<Released>())
        .def("incidents", &PlanExecutor::incidents, "Return what has happened since the last call.")
        .def("running", &PlanExecutor::running, "Return the nodes that have started, and have not ended.")
        .def(
            "ran",
            [](const PlanExecutor& executor, Index slot) {
                check_index("slot", slot, executor.slots());
                std::vector<std::tuple<Index, double, double>> found;
                for (const Ran& ran : executor.ran(slot)) found.emplace_back(ran.node, ran.start, ran.finish);
                return found;
            },
            "slot"_a, "Return node, start and finish of each node that ran since the request in a slot began, by start.")
        .def(
            "seconds",
            [](const PlanExecutor& executor, bool last, const Array<double>& found) {
                executor.seconds(last, found.vector("found", at(executor.ops())));
            },
            "last"_a, "found"_a,
            "Write the median seconds of each op over its last runs, or its seconds in the last one, to float64[V].")
        .def(
            "blend",
            [](PlanExecutor& executor, std::size_t runs, const Array<const double>& seconds) {
                executor.blend(runs, seconds.vector("seconds", at(executor.ops())));
            },
            "runs"_a, "seconds"_a, "Replace the samples of the last runs of each op by seconds, float64[V].")
        .def(
            "error",
            [](PlanExecutor& executor, Index node) -> nb::object {
                check_index("node", node, executor.nodes());
                const auto call = executor.calls.find(node);
                if (call == executor.calls.end()) return nb::none();
                nb::object error = std::exchange(call->second->error, nb::object());
                return error.is_valid() ? error : nb::none();
            },
            "node"_a, "Take the error that the Python function of a node raised or reported last; None for other nodes.")
        .def(
            "when_over",
            [](PlanExecutor& executor, const nb::typed<nb::callable, nb::object()>& call) {
                PyObject* const kept = call.inc_ref().ptr();
                const bool waits = executor.when_over([kept] {
                    const Held gil;
                    const nb::object function = nb::steal(kept);
                    try {
                        function();
                    } catch (nb::python_error& error) {
                        error.discard_as_unraisable("the end of a run");
                    }
                });
                if (!waits) nb::steal(kept).reset();
                return waits;
            },
            "call"_a, "Have a function called when the run is over, on the thread that ends it; False if it is over already.")
        .def_prop_ro("stopped", &PlanExecutor::stopped)
        .def_prop_ro("over", &PlanExecutor::over)
        .def_prop_ro("begun_at", &PlanExecutor::begun_at)
        .def_prop_ro("ended_at", &PlanExecutor::ended_at);

    module.def(
        "exit", [] { exiting = exits = true; }, "Have threads that wait for runs wait for ever, as the interpreter exits.");
    module.def(
        "keep", [](const nb::typed<nb::list, PlanExecutor>& running) { running.inc_ref(); }, "running"_a,
        "Keep executors whose runs have not ended for as long as the process lives.");
    module.def(
        "leave",
        [](double seconds) {
            leaving = exits = true;
            const Released unheld;
            for (const double until = now() + seconds; entering > 0 && now() < until;) std::this_thread::yield();
        },
        "seconds"_a,
        "Have threads wait for ever where they would take the interpreter's lock, as the interpreter exits; wait some seconds "
        "at\n"
        "most for those that hold it.");
    module.def(
        "spend", [] { return reinterpret_cast<std::uintptr_t>(&spend); },
        "Return the address of an entry that keeps its thread busy. Its argument is the address of int64[3]: nanoseconds\n"
        "to take, number of calls, and the status to return.");
}

}  // namespace placeit
