#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <cmath>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/exclusive.hpp"
#include "bindings/lock.hpp"
#include "placers/enumerative.hpp"
#include "placers/exact.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

void make_search(Exclusive<ExactSearch>* self, const Tables& tables, const Array<const double>& tail,
                 const Array<const std::int32_t>& alike, const Array<const Flag>& cliques, const Array<const double>& share,
                 bool capacity) {
    const std::size_t ops = tables.compute.rows(), devices = tables.memory.size();
    new (self)
        Exclusive<ExactSearch>(tables, Bounds{copy(amounts("tail", tail.vector("tail", ops), infinity)),
                                              copy(alike.vector("alike", devices)), copy(cliques.grid("cliques", {}, devices)),
                                              copy(amounts("share", share.vector("share", devices))), capacity});
}

std::pair<std::size_t, std::int64_t> next(Exclusive<ExactSearch>& search, const Array<std::int32_t>& placements, double bound,
                                          std::int64_t nodes) {
    const auto rows = placements.grid("placements", {}, search.ops());
    if (std::isnan(bound)) throw nb::value_error("'bound' must not be NaN.");
    const Use use(search, "The search");
    const Released released;
    const auto [found, examined] = search.next(rows, bound, nodes);
    return {found, examined};
}

}  // namespace

void bind_enumeration(nb::module_& module) {
    nb::class_<Exclusive<ExactSearch>>(module, "ExactSearch",
                                       "The feasible placements of a problem, depth first, cut off by lower bounds.")
        .def("__init__", &make_search, nb::keep_alive<1, 2>(), "tables"_a, "tail"_a, "alike"_a, "cliques"_a, "share"_a,
             "capacity"_a)
        .def("next", &next, "placements"_a, "bound"_a, "nodes"_a,
             "Write the next placements whose lower bound is below a bound, int32[N, V]; return how many there are, and how\n"
             "many partial placements were examined to find them.")
        .def_prop_ro("over", [](Exclusive<ExactSearch>& self) { return Use(self, "The search"), self.over(); });
    module.def(
        "spread",
        [](const Array<const double>& seconds, std::int64_t limit, const Array<std::int32_t>& devices) {
            const auto table = amounts("seconds", seconds.grid("seconds"), infinity);
            const auto written = devices.vector("devices", table.rows());
            if (table.columns() == 0) throw nb::value_error("'seconds' has no devices.");
            const Released released;
            spread(table, limit, written);
        },
        "seconds"_a, "limit"_a, "devices"_a,
        "Write devices for ops, int32[n], evenly and with the least sum of seconds, float64[n, D], that some steps find.");
}

}  // namespace placeit
