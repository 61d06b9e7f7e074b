#include <nanobind/nanobind.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/exclusive.hpp"
#include "bindings/lock.hpp"
#include "placers/annealing.hpp"
#include "placers/contiguous.hpp"
#include "placers/earliest_finish.hpp"
#include "placers/list_scheduling.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {
namespace {

using Ints = Array<const std::int32_t>;
using Doubles = Array<const double>;

constexpr std::size_t kMostStates = std::size_t{1} << 26;  // of a split's dynamic program, with its borders

std::size_t ops_of(const Tables& tables) {
    return tables.compute.rows();
}
std::size_t devices_of(const Tables& tables) {
    return tables.compute.columns();
}

void bind_list_scheduling(nb::module_& module) {
    const auto ranks = [](auto write) {
        return [write](const Tables& tables, const Doubles& compute, const Doubles& comm, const Array<double>& rank) {
            write(tables, amounts("compute", compute.vector("compute", ops_of(tables)), infinity),
                  amounts("comm", comm.vector("comm", tables.edge.size())), rank.vector("rank", ops_of(tables)));
        };
    };
    module.def("upward_ranks", ranks(&upward_ranks), "tables"_a, "compute"_a, "comm"_a, "rank"_a,
               "Write the mean length of the longest path from the start of each op to an exit, seconds, float64[V].");
    module.def("downward_ranks", ranks(&downward_ranks), "tables"_a, "compute"_a, "comm"_a, "rank"_a,
               "Write the mean length of the longest path from an entry to the start of each op, seconds, float64[V].");
    module.def(
        "optimistic_costs",
        [](const Tables& tables, const Doubles& comm, const Array<double>& cost) {
            optimistic_costs(tables, amounts("comm", comm.vector("comm", tables.edge.size())),
                             cost.grid("cost", ops_of(tables), devices_of(tables)));
        },
        "tables"_a, "comm"_a, "cost"_a,
        "Write the least seconds from the end of each op on each device to an exit, if devices were free, float64[V, D].");
    module.def(
        "ready_order",
        [](const Tables& tables, const Ints& by_priority, const Array<std::int32_t>& order) {
            ready_order(tables, by_priority.vector("by_priority", ops_of(tables)), order.vector("order", ops_of(tables)));
        },
        "tables"_a, "by_priority"_a, "order"_a, "Write the order in which ops leave a ready list, int32[V].");
    module.def(
        "insertion_schedule",
        [](const Tables& tables, const Ints& order, const Doubles& compute, const Doubles& onward, const Doubles& memory,
           LinkModel links, const Array<std::int32_t>& place, const Array<double>& start, const Array<double>& finish) {
            const std::size_t ops = ops_of(tables);
            const Plan plan{place.vector("place", ops), start.vector("start", ops), finish.vector("finish", ops)};
            const auto turns = order.vector("order", ops);
            const auto seconds = amounts("compute", compute.grid("compute", ops, devices_of(tables)), infinity);
            const auto later = amounts("onward", onward.grid("onward", ops, devices_of(tables)), infinity);
            const auto room = amounts("memory", memory.vector("memory", devices_of(tables)), infinity);
            const Released released;
            return insertion_schedule(tables, turns, seconds, later, room, links, plan);
        },
        "tables"_a, "order"_a, "compute"_a, "onward"_a, "memory"_a, "links"_a, "place"_a, "start"_a, "finish"_a,
        "Write the device, start and finish of each op, each in the earliest gap that holds it, where its finish and the "
        "seconds "
        "onward are least; return whether the weights fit.");
    module.def(
        "earliest_start_placement",
        [](const Tables& tables, const Ints& order, const Doubles& lots, const Array<std::int32_t>& place) {
            const auto turns = order.vector("order", ops_of(tables));
            const auto draws = ordered("lots", lots.grid("lots", ops_of(tables), devices_of(tables)));
            const auto chosen = place.vector("place", ops_of(tables));
            const Released released;
            earliest_start_placement(tables, turns, draws, chosen);
        },
        "tables"_a, "order"_a, "lots"_a, "place"_a,
        "Write the device of each op, int32[V], where it starts earliest behind all that was placed before.");
}

/// Checks that every op is in an order once, behind its producers.
Span<const std::int32_t> topological(const Tables& tables, const Ints& order) {
    const auto found = order.vector("order", ops_of(tables));
    check_range("order", found, 0, tables.ops() - 1);
    std::vector<std::int32_t> position(found.size(), -1);
    for (std::size_t i = 0; i < found.size(); ++i) position[at(found[i])] = static_cast<std::int32_t>(i);
    for (const std::int32_t i : position) {
        if (i < 0) throw nb::value_error("'order' must have every op once.");
    }
    for (const Edge& edge : tables.edge) {
        if (position[edge.tail] > position[edge.head]) throw nb::value_error("'order' must have producers before consumers.");
    }
    return found;
}

std::vector<DeviceClass> device_classes(const Tables& tables, const Ints& kinds, std::size_t borders) {
    const auto of = kinds.vector("kinds", devices_of(tables));
    check_range("kinds", of, 0, tables.devices() - 1);
    std::vector<DeviceClass> classes;
    for (std::size_t d = 0; d < of.size(); ++d) {
        if (at(of[d]) >= classes.size()) classes.resize(at(of[d]) + 1);
        classes[at(of[d])].push_back(static_cast<std::int32_t>(d));
    }
    std::size_t states = 1;
    for (const DeviceClass& one : classes) {
        if (one.empty()) throw nb::value_error("'kinds' must be numbers from 0 on, without a gap.");
        states *= one.size() + 1;
        if (states * borders > kMostStates) throw nb::value_error("'kinds' has too many kinds of devices for these borders.");
    }
    return classes;
}

void bind_searches(nb::module_& module) {
    nb::enum_<SplitCost>(module, "SplitCost", "What a split costs.")
        .value("busiest", SplitCost::busiest, "The seconds of its busiest run.")
        .value("sum", SplitCost::sum, "The seconds of all runs in turn.");
    module.def(
        "contiguous_split",
        [](const Tables& tables, const Ints& order, const Ints& borders, const Ints& kinds, SplitCost cost,
           const Array<std::int32_t>& place) {
            const auto turns = topological(tables, order);
            const auto between = borders.vector("borders");
            if (between.size() < 2 || between[0] != 0 || between[between.size() - 1] != tables.ops() ||
                std::adjacent_find(between.begin(), between.end(), std::greater_equal<>()) != between.end()) {
                throw nb::value_error("'borders' must ascend from 0 to the number of ops.");
            }
            const auto classes = device_classes(tables, kinds, between.size());
            const auto chosen = place.vector("place", ops_of(tables));
            const Released released;
            return contiguous_split(tables, turns, between, classes, cost, chosen);
        },
        "tables"_a, "order"_a, "borders"_a, "kinds"_a, "cost"_a, "place"_a,
        "Write the device of each op, int32[V], in the best contiguous split of an order over devices of some kinds, int32[D]; "
        "return its seconds, inf if no split can run.");
    module.def(
        "earliest_finish_devices",
        [](const Tables& tables, const Ints& place, const Array<const std::int64_t>& ops, const Array<std::int32_t>& devices) {
            const auto on = placement_of(tables, place);
            const auto moved = ops.vector("ops");
            check_range("ops", moved, 0, tables.ops() - 1);
            const auto chosen = devices.vector("devices", moved.size());
            const Released released;
            earliest_finish_devices(tables, on, moved, chosen);
        },
        "tables"_a, "place"_a, "ops"_a, "devices"_a,
        "Write the device where each op would finish first if moved alone, int32[K].");

    nb::class_<Exclusive<Annealing>>(module, "Annealing", "A search by simulated annealing, from a placement on.")
        .def(
            "__init__",
            [](Exclusive<Annealing>* self, const CostModel& model, const Ints& place, double scale, std::uint64_t seed) {
                new (self) Exclusive<Annealing>(model, placement_of(*model.tables, place), amount("scale", scale), seed);
            },
            "model"_a, "place"_a, "scale"_a, "seed"_a, nb::keep_alive<1, 2>())
        .def(
            "run",
            [](Exclusive<Annealing>& self, std::int64_t first, std::int64_t last, std::int64_t steps) {
                const Use use(self, "The search");
                const Released released;
                self.run(first, last, steps);
            },
            "first"_a, "last"_a, "steps"_a, "Do moves first to last, excluded, of steps in all.")
        .def_prop_ro(
            "seconds", [](Exclusive<Annealing>& self) { return Use(self, "The search"), self.seconds(); },
            "Cost of the best placement so far; inf before there is one.")
        .def(
            "best",
            [](Exclusive<Annealing>& self, const Array<std::int32_t>& place) {
                const Use use(self, "The search");
                std::copy(self.best().begin(), self.best().end(), place.vector("place", self.best().size()).begin());
            },
            "place"_a, "Write the best placement so far, int32[V].");
}

}  // namespace

void bind_placers(nb::module_& module) {
    bind_list_scheduling(module);
    bind_searches(module);
}

}  // namespace placeit
