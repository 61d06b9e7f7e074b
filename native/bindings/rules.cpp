#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "bindings/arrays.hpp"
#include "rules/tables.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

void bind_rules(nb::module_& module) {
    using Doubles = Array<const double>;
    using Ints = Array<const std::int32_t>;
    using Flags = Array<const Flag>;

    nb::class_<Tables>(module, "Tables", "A problem as the compiled functions read it.")
        .def(
            "__init__",
            [](Tables* self, Doubles& compute, const Ints& edges, const Doubles& edge_bytes, const Ints& edge_tensor,
               const Doubles& latency, const Doubles& bandwidth, const Doubles& cut, const Doubles& param_bytes,
               const Doubles& memory, const Flags& conflicts, const Flags& cliques, const Doubles& host, const Ints& order,
               const Doubles& tied) {
                ProblemArrays problem;
                problem.compute = amounts("compute", compute.grid("compute"), infinity);
                problem.edges = edges.grid("edges", {}, 2);
                const std::size_t ops = problem.compute.rows(), devices = problem.compute.columns();
                const std::size_t count = problem.edges.rows();
                problem.edge_bytes = amounts("edge_bytes", edge_bytes.vector("edge_bytes", count));
                problem.edge_tensor = edge_tensor.vector("edge_tensor", count);
                problem.latency = amounts("latency", latency.grid("latency", devices, devices));
                problem.bandwidth = rates("bandwidth", bandwidth.grid("bandwidth", devices, devices));
                problem.cut = amounts("cut", cut.grid("cut", count, devices));
                problem.param_bytes = amounts("param_bytes", param_bytes.vector("param_bytes", ops));
                problem.memory = amounts("memory", memory.vector("memory", devices), infinity);
                problem.conflicts = conflicts.grid("conflicts", devices, devices);
                problem.cliques = cliques.grid("cliques", {}, devices);
                problem.host = amounts("host", host.vector("host", devices + 1));
                problem.order = order.vector("order", ops);
                problem.tied = amounts("tied", tied.grid("tied", {}, 3));
                for (std::size_t i = 0; i < problem.tied.rows(); ++i) {
                    check_index("tied", static_cast<std::int64_t>(problem.tied(i, 2)), static_cast<std::int64_t>(ops));
                }
                new (self) Tables(make_tables(problem));
                self->owner = std::make_shared<Doubles>(std::move(compute));
            },
            "compute"_a, "edges"_a, "edge_bytes"_a, "edge_tensor"_a, "latency"_a, "bandwidth"_a, "cut"_a, "param_bytes"_a,
            "memory"_a, "conflicts"_a, "cliques"_a, "host"_a, "order"_a, "tied"_a)
        .def_prop_ro("ops", &Tables::ops)
        .def_prop_ro("devices", &Tables::devices)
        .def_prop_ro("edges", &Tables::edges);

    nb::enum_<LinkModel>(module, "LinkModel")
        .value("contention_free", LinkModel::contention_free)
        .value("channel", LinkModel::channel);
    nb::enum_<Discipline>(module, "Discipline")
        .value("fifo", Discipline::fifo)
        .value("priority", Discipline::priority)
        .value("planned", Discipline::planned);
}

}  // namespace placeit
