#include <nanobind/nanobind.h>

#include "bindings/arrays.hpp"
#include "bindings/lock.hpp"
#include "simulator/cost_model.hpp"
#include "simulator/simulation.hpp"
#include "simulator/throughput.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

/// A priority of each op, or none.
Span<const double> priorities(const Tables& tables, const Array<const double>& priority) {
    const Span<const double> checked = ordered("priority", priority.vector("priority"));
    if (!checked.empty()) priority.vector("priority", at(tables.ops()));
    return checked;
}

/// When requests arrive: seconds from 0, ascending.
Span<const double> arrival_times(const Array<const double>& arrivals) {
    const Span<const double> times = amounts("arrivals", arrivals.vector("arrivals"));
    double before = 0.0;
    for (const double time : times) {
        if (!(time >= before)) throw nb::value_error("'arrivals' must be seconds from 0, ascending.");
        before = time;
    }
    if (times.empty()) throw nb::value_error("'arrivals' is empty.");
    return times;
}

void check_slots(const Tables& tables, Index slots, Index threads = 1) {
    if (slots < 1 || slots > max_requests(tables)) throw nb::value_error("'slots' is out of range.");
    if (threads < 1) throw nb::value_error("'threads' must be at least 1.");
}

}  // namespace

void bind_simulator(nb::module_& module) {
    using Doubles = Array<const double>;
    using Ints = Array<const Index>;

    nb::enum_<Memory>(module, "Memory", "How memory is taken into account.")
        .value("weights_only", Memory::weights_only, "Over-full devices cost inf.")
        .value("track", Memory::track, "The peak of live tensors is recorded, too.")
        .value("limit", Memory::limit, "A peak over a device's memory costs inf.");

    nb::class_<Options>(module, "Options",
                        "How placements are simulated; noise is the half width of the factor on all seconds.")
        .def(
            "__init__",
            [](Options* self, LinkModel links, Discipline queue, Memory memory, double noise) {
                if (!(noise >= 0.0 && noise < 1.0)) throw nb::value_error("'noise' must be at least 0 and less than 1.");
                new (self) Options{links, queue, memory, noise, 0};
            },
            "links"_a, "queue"_a, "memory"_a = Memory::weights_only, "noise"_a = 0.0)
        .def_ro("links", &Options::links)
        .def_ro("queue", &Options::discipline)
        .def_ro("memory", &Options::memory)
        .def_ro("noise", &Options::noise);

    nb::class_<CostModel>(module, "CostModel", "The cost of a placement, for compiled searches.")
        .def(
            "__init__",
            [](CostModel* self, const Tables& tables, const Doubles& priority, const Options& options) {
                new (self) CostModel{&tables, false, copy(priorities(tables, priority)), options};
            },
            "tables"_a, "priority"_a, "options"_a, nb::keep_alive<1, 2>(),
            "The makespan of one request; priority: [V], or empty for b-levels.")
        .def_static(
            "capacity", [](const Tables& tables) { return CostModel{&tables, true, {}, {}}; }, "tables"_a,
            nb::keep_alive<0, 1>(), "The seconds per request of the busiest resource.");

    module.def(
        "makespans",
        [](const Tables& tables, const Ints& placements, const Doubles& priority, const Options& options, std::uint64_t seed,
           const Doubles& arrivals, Index slots, Index threads, const Array<double>& seconds) {
            const auto batch = placements.grid("placements", {}, at(tables.ops()));
            const auto ranks = ordered("priority", priority.grid("priority", {}, at(tables.ops())));
            if (ranks.rows() > 1 && ranks.rows() != batch.rows()) {
                throw nb::value_error("'priority' must have one row for each placement, one for all, or none.");
            }
            const auto times = arrival_times(arrivals);
            const auto out = seconds.vector("seconds", batch.rows());
            check_slots(tables, slots, threads);
            const Released release;
            makespans(tables, batch, ranks, options, seed, times, slots, threads, out);
        },
        "tables"_a, "placements"_a, "priority"_a, "options"_a, "seed"_a, "arrivals"_a, "slots"_a, "threads"_a, "seconds"_a,
        "Write the seconds of each placement, float64[B]; IndexError for a device that does not exist.");

    module.def(
        "record_requests",
        [](const Tables& tables, const Ints& place, const Doubles& priority, const Options& options, std::uint64_t seed,
           const Doubles& arrivals, Index slots, const Array<double>& times, const Array<double>& log,
           const Array<double>& peak) {
            const auto where = placement_of(tables, place);
            const auto ranks = priorities(tables, priority);
            const auto arrived = arrival_times(arrivals);
            const Record record{times.grid("times", 2, arrived.size()),
                                log.grid("log", 2 * arrived.size(), at(tables.ops() + tables.edges()))};
            const auto bytes = peak.vector("peak", at(tables.devices()));
            check_slots(tables, slots);
            const Released release;
            return record_requests(tables, where, ranks, options, seed, arrived, slots, record, bytes);
        },
        "tables"_a, "place"_a, "priority"_a, "options"_a, "seed"_a, "arrivals"_a, "slots"_a, "times"_a, "log"_a, "peak"_a,
        "Simulate requests and write when they began and ended, float64[2, R], the start and the finish of every node of\n"
        "each, float64[2 * R, V + E], and the most bytes of each device, float64[D].");

    module.def(
        "b_level",
        [](const Tables& tables, const Ints& place, const Array<double>& rank) {
            const auto where = placement_of(tables, place);
            b_level(tables, where, rank.vector("rank", where.size()));
        },
        "tables"_a, "place"_a, "rank"_a, "Write the longest path from each op to an exit, seconds, float64[V].");

    module.def(
        "busy_seconds",
        [](const Tables& tables, const Ints& place, const Array<double>& busy) {
            return busy_seconds(tables, placement_of(tables, place), busy.vector("busy", resources(tables)));
        },
        "tables"_a, "place"_a, "busy"_a,
        "Write the seconds for which a request keeps each device, set of devices and pair of devices busy; return the most.");

    module.def(
        "seconds_per_request",
        [](const Tables& tables, const Ints& placements, const Array<double>& seconds) {
            const auto batch = placements.grid("placements", {}, at(tables.ops()));
            check_range("placements", batch.all(), 0, tables.devices() - 1);
            const auto out = seconds.vector("seconds", batch.rows());
            const Released release;
            seconds_per_request(tables, batch, out);
        },
        "tables"_a, "placements"_a, "seconds"_a, "Write the least seconds per request of each placement, float64[B].");
}

}  // namespace placeit
