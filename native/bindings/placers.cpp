#include <nanobind/nanobind.h>

#include "bindings/arrays.hpp"
#include "placers/list_scheduling.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {
namespace {

using Ints = Array<const std::int32_t>;
using Doubles = Array<const double>;

std::size_t ops_of(const Tables& tables) {
    return tables.compute.rows();
}
std::size_t devices_of(const Tables& tables) {
    return tables.compute.columns();
}

void bind_list_scheduling(nb::module_& module) {
    const auto ranks = [](auto write) {
        return [write](const Tables& tables, const Doubles& compute, const Doubles& comm, const Array<double>& rank) {
            write(tables, compute.vector("compute", ops_of(tables)), comm.vector("comm", tables.edge.size()),
                  rank.vector("rank", ops_of(tables)));
        };
    };
    module.def("upward_ranks", ranks(&upward_ranks), "tables"_a, "compute"_a, "comm"_a, "rank"_a);
    module.def("downward_ranks", ranks(&downward_ranks), "tables"_a, "compute"_a, "comm"_a, "rank"_a);
    module.def(
        "ready_order",
        [](const Tables& tables, const Ints& by_priority, const Array<std::int32_t>& order) {
            ready_order(tables, by_priority.vector("by_priority", ops_of(tables)), order.vector("order", ops_of(tables)));
        },
        "tables"_a, "by_priority"_a, "order"_a);
    module.def(
        "insertion_schedule",
        [](const Tables& tables, const Ints& order, const Doubles& compute, const Doubles& memory,
           const Array<std::int32_t>& place, const Array<double>& start, const Array<double>& finish) {
            const std::size_t ops = ops_of(tables);
            const Plan plan{place.vector("place", ops), start.vector("start", ops), finish.vector("finish", ops)};
            const auto turns = order.vector("order", ops);
            const auto seconds = compute.grid("compute", ops, devices_of(tables));
            const auto room = memory.vector("memory", devices_of(tables));
            const nb::gil_scoped_release released;
            return insertion_schedule(tables, turns, seconds, room, plan);
        },
        "tables"_a, "order"_a, "compute"_a, "memory"_a, "place"_a, "start"_a, "finish"_a);
    module.def(
        "earliest_start_placement",
        [](const Tables& tables, const Ints& order, const Doubles& lots, const Array<std::int32_t>& place) {
            const auto turns = order.vector("order", ops_of(tables));
            const auto draws = lots.grid("lots", ops_of(tables), devices_of(tables));
            const auto chosen = place.vector("place", ops_of(tables));
            const nb::gil_scoped_release released;
            earliest_start_placement(tables, turns, draws, chosen);
        },
        "tables"_a, "order"_a, "lots"_a, "place"_a);
}

}  // namespace

void bind_placers(nb::module_& module) {
    bind_list_scheduling(module);
}

}  // namespace placeit
