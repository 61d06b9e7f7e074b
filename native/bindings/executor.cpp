#include <nanobind/nanobind.h>
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
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/exclusive.hpp"
#include "executor/bell.hpp"
#include "executor/lanes.hpp"
#include "executor/spend.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

/// A segment that runs in Python, and what it raised last.
struct Call {
    nb::callable run;
    nb::object error;

    static int perform(void* argument) {
        auto& call = *static_cast<Call*>(argument);
        const nb::gil_scoped_acquire gil;
        try {
            call.run();
            return 0;
        } catch (nb::python_error& error) {
            call.error = nb::borrow(error.value());
            return 1;
        }
    }
};

struct PlanLanes : Lanes {
    PlanLanes(std::shared_ptr<Exclusive<Machine>> rules, Span<const double> slowdown)
        : Lanes(rules, slowdown), machine(std::move(rules)) {}

    std::shared_ptr<Exclusive<Machine>> machine;
    std::optional<Use> use;  // of the machine, from when a run is prepared until its last lane has left
    int inside = 0;          // lanes at work
    std::unordered_map<Index, std::unique_ptr<Call>> calls;  // by node; their addresses are the arguments of entries
};

void set(PlanLanes& lanes, Index node, Index lane, Entry entry, double seconds) {
    check_index("node", node, lanes.nodes());
    check_index("lane", lane, lanes.lanes());
    lanes.set(node, Step{lane, entry, seconds});
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

    nb::class_<Bell>(module, "Bell",
                     "A counter of the kernel to poll, closed when nobody refers to it, nor a run that rings it.")
        .def(nb::init<>())
        .def_prop_ro("descriptor", &Bell::descriptor)
        .def("ring", &Bell::ring);

    nb::class_<Ended>(module, "Ended", "A request has ended, well unless an entry of it has failed.")
        .def_ro("slot", &Ended::slot)
        .def_ro("at", &Ended::at);
    nb::class_<Failed>(module, "Failed", "The first entry that failed; in a run with a bell, of a request.")
        .def_ro("node", &Failed::node)
        .def_ro("lane", &Failed::lane)
        .def_ro("status", &Failed::status)
        .def_ro("at", &Failed::at);
    nb::class_<Cancelled>(module, "Cancelled", "Somebody has stopped the run.").def_ro("at", &Cancelled::at);
    nb::class_<Late>(module, "Late", "The deadline of the run was over before the run was.")
        .def_ro("deadline", &Late::deadline)
        .def_ro("running", &Late::running, "int64, nodes that were on lanes then, or queued there.");
    nb::class_<Broken>(module, "Broken", "Nobody knows any more what is to run.").def_ro("why", &Broken::why);

    nb::class_<PlanLanes>(module, "Lanes", "The lanes of a plan, which run it without Python but for segments that need it.")
        .def(
            "__init__",
            [](PlanLanes* self, std::shared_ptr<Exclusive<Machine>> rules, const Array<const double>& slowdown) {
                const auto factors = slowdown.vector("slowdown");
                if (factors.empty()) throw nb::value_error("'slowdown' must hold a number for each lane; got none.");
                for (const double factor : factors) {
                    if (!(factor >= 0) || std::isinf(factor))
                        throw nb::value_error("'slowdown' holds a number that is no factor.");
                }
                new (self) PlanLanes(std::move(rules), factors);
            },
            "rules"_a, "slowdown"_a)
        .def(
            "set_entry",
            [](PlanLanes& lanes, Index node, Index lane, std::uintptr_t function, std::uintptr_t argument) {
                if (function == 0) throw nb::value_error("'function' must be the address of a C function; got 0.");
                set(lanes, node, lane, {reinterpret_cast<int (*)(void*)>(function), reinterpret_cast<void*>(argument)}, 0.0);
            },
            "node"_a, "lane"_a, "function"_a, "argument"_a, "Run a segment by a C function, int (*)(void *), and its argument.")
        .def(
            "set_call",
            [](PlanLanes& lanes, Index node, Index lane, nb::typed<nb::callable, nb::object()> run) {
                auto call = std::make_unique<Call>(Call{std::move(run), nb::object()});
                set(lanes, node, lane, {&Call::perform, call.get()}, 0.0);
                lanes.calls.insert_or_assign(node, std::move(call));
            },
            "node"_a, "lane"_a, "run"_a, "Run a segment by a Python function without arguments.")
        .def(
            "set_transfer",
            [](PlanLanes& lanes, Index node, Index lane, double seconds) {
                if (!(seconds >= 0) || std::isinf(seconds)) throw nb::value_error("'seconds' must be finite and not negative.");
                set(lanes, node, lane, {}, seconds);
            },
            "node"_a, "lane"_a, "seconds"_a, "Have a transfer keep a link for so long.")
        .def(
            "forget",
            [](PlanLanes& lanes, Index slot) {
                check_index("slot", slot, lanes.slots());
                const Index count = lanes.nodes() / lanes.slots();
                for (Index node = slot * count; node < (slot + 1) * count; ++node) {
                    lanes.set(node, Step{});
                    lanes.calls.erase(node);
                }
            },
            "slot"_a, "Have nothing of a slot that is not in flight be carried out any more, and let go of its functions.")
        .def("grow", &Lanes::grow, "slots"_a, "Make room for more slots, in the rules, too.")
        .def(
            "prepare",
            [](PlanLanes& lanes, const Array<const Index>& slots, std::int64_t waiting, std::shared_ptr<Bell> bell,
               double deadline) {
                const auto first = slots.vector("slots");
                check_range("slots", first, 0, lanes.slots() - 1);
                if (waiting < 0) throw nb::value_error("'waiting' must not be negative.");
                if (std::isnan(deadline)) throw nb::value_error("'deadline' must not be NaN.");
                if (!lanes.use) lanes.use.emplace(*lanes.machine, "The machine");
                lanes.prepare(first, waiting, std::move(bell), deadline);
            },
            "slots"_a, "waiting"_a, "bell"_a.none(), "deadline"_a)
        .def(
            "work",
            [](PlanLanes& lanes, Index lane) {
                check_index("lane", lane, lanes.lanes());
                ++lanes.inside;
                {
                    const nb::gil_scoped_release no_gil;
                    lanes.work(lane);
                }
                if (--lanes.inside == 0) lanes.use.reset();
            },
            "lane"_a)
        .def(
            "admit",
            [](PlanLanes& lanes, Index slot) {
                check_index("slot", slot, lanes.slots());
                lanes.admit(slot);
            },
            "slot"_a)
        .def("admit_no_more", &Lanes::admit_no_more)
        .def("stop",
             [](PlanLanes& lanes) {
                 lanes.stop();
                 if (lanes.inside == 0) lanes.use.reset();  // no lane has come yet
             })
        .def("events", &Lanes::events, "What has happened since this was last asked.")
        .def("running", &Lanes::running, "int64, nodes that are on lanes or queued there.")
        .def(
            "ran",
            [](const PlanLanes& lanes, Index slot) {
                check_index("slot", slot, lanes.slots());
                std::vector<std::tuple<Index, double, double>> found;
                for (const Ran& ran : lanes.ran(slot)) found.emplace_back(ran.node, ran.start, ran.finish);
                return found;
            },
            "slot"_a, "Node, start and finish of what has run since the request in a slot began, by start.")
        .def(
            "error",
            [](PlanLanes& lanes, Index node) -> nb::object {
                check_index("node", node, lanes.nodes());
                const Entry& entry = lanes.step(node).entry;
                if (entry.function != &Call::perform) return nb::none();
                nb::object error = std::exchange(static_cast<Call*>(entry.argument)->error, nb::object());
                return error.is_valid() ? error : nb::none();
            },
            "node"_a, "Take what the Python function of a segment raised last; None if it is another kind of segment.")
        .def_prop_ro("begun", &Lanes::begun)
        .def_prop_ro("stopped", &Lanes::stopped)
        .def_prop_ro("begin", &Lanes::begin)
        .def_prop_ro("end", &Lanes::end);

    module.def(
        "spend", [] { return reinterpret_cast<std::uintptr_t>(&spend); },
        "The address of an entry that keeps its thread busy: its argument is that of int64[3], nanoseconds to take, how\n"
        "often it was called, and what it returns.");
}

}  // namespace placeit
