#include <nanobind/nanobind.h>

#include <algorithm>

#include "bindings/arrays.hpp"
#include "bindings/exclusive.hpp"
#include "bindings/lock.hpp"
#include "planning/groups.hpp"
#include "planning/segment_search.hpp"
#include "planning/segments.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

using Doubles = Array<const double>;
using Ints = Array<const std::int32_t>;
using Flags = Array<const Flag>;

void make_groups(Groups* self, const Ints& edges, const Doubles& tensor_bytes, const Doubles& core, const Doubles& cut_per_byte,
                 const Doubles& dispatch, const Doubles& load, const Doubles& beside, const Flags& conflicts,
                 const Doubles& read, const Doubles& latency, const Doubles& bandwidth, const Flags& passthrough,
                 const Flags& cliques, const Doubles& host, double in_flight, const Doubles& outside) {
    Groups groups;
    groups.core = copy(amounts("core", core.grid("core"), infinity));
    if (groups.core.empty()) throw nb::value_error("'core' is empty: there must be a group and a device.");
    const std::size_t count = groups.groups(), devices = groups.devices();
    groups.tensor_bytes = copy(amounts("tensor_bytes", tensor_bytes.vector("tensor_bytes")));
    const auto ends = edges.grid("edges", {}, 3);
    for (std::size_t e = 0; e < ends.rows(); ++e) groups.edge.push_back({ends(e, 0), ends(e, 1), ends(e, 2)});
    groups.cut_per_byte = copy(amounts("cut_per_byte", cut_per_byte.grid("cut_per_byte", count, devices)));
    groups.dispatch = copy(amounts("dispatch", dispatch.vector("dispatch", devices)));
    groups.load = copy(amounts("load", load.grid("load", count, devices), MOST, -MOST));
    groups.beside = copy(amounts("beside", beside.grid("beside", devices, devices)));
    groups.conflict = conflict_table(conflicts.grid("conflicts", devices, devices));
    groups.read = copy(amounts("read", read.vector("read", devices)));
    groups.link = link_table(amounts("latency", latency.grid("latency", devices, devices)),
                             rates("bandwidth", bandwidth.grid("bandwidth", devices, devices)));
    groups.passthrough = copy(passthrough.vector("passthrough", count));
    groups.clique = copy(cliques.grid("cliques", {}, devices));
    groups.host = host_table(amounts("host", host.vector("host", devices + 1)));
    groups.in_flight = amount("in_flight", in_flight, infinity);
    groups.outside = copy(amounts("outside", outside.vector("outside", devices)));
    check(groups);
    new (self) Groups(std::move(groups));
}

Span<const std::int32_t> check_devices(const Groups& groups, const char* name, const Ints& devices) {
    const auto checked = devices.vector(name, groups.groups());
    check_range(name, checked, 0, static_cast<std::int64_t>(groups.devices()) - 1);
    return checked;
}

double merge_groups(const Groups& groups, const Ints& devices, const Array<std::int32_t>& segment_of) {
    const auto place = check_devices(groups, "devices", devices);
    const auto segments = segment_of.vector("segment_of", groups.groups());
    const Released released;
    return Segmentation(groups).merge(place, segments);
}

std::size_t divide_groups(const Groups& groups, const Array<std::int32_t>& segment_of, const Ints& devices,
                          const Array<std::int32_t>& moves, const Array<double>& seconds) {
    const auto place = check_devices(groups, "devices", devices);
    const auto segments = segment_of.vector("segment_of", groups.groups());
    const auto priced = seconds.vector("seconds");
    check_range("segment_of", segments, 0, static_cast<std::int64_t>(priced.size()) - 1);
    const auto rows = moves.grid("moves", groups.edge.size(), 3);
    const Released released;
    Segmentation found(groups);
    if (!found.divide(segments, static_cast<std::int32_t>(priced.size()), place)) {
        throw nb::value_error("'segment_of' has segments that wait for each other in a circle.");
    }
    std::copy(found.segment_of().begin(), found.segment_of().end(), segments.begin());
    std::copy(found.seconds().begin(), found.seconds().end(), priced.begin());
    for (std::size_t m = 0; m < found.moves().size(); ++m) {
        const auto& [producer, consumer, tensor] = found.moves()[m];
        rows(m, 0) = producer, rows(m, 1) = consumer, rows(m, 2) = tensor;
    }
    return found.moves().size();
}

void make_search(Exclusive<SegmentSearch>* self, const Groups& groups, const Ints& placement, const Flags& feasible,
                 const Doubles& param_bytes, const Doubles& memory, std::int64_t steps, double heat,
                 const nb::object& bit_generator) {
    Room room{copy(feasible.grid("feasible", groups.groups(), groups.devices())),
              copy(amounts("param_bytes", param_bytes.vector("param_bytes", groups.groups()))),
              copy(amounts("memory", memory.vector("memory", groups.devices()), infinity))};
    auto place = copy(check_devices(groups, "placement", placement));
    amount("heat", heat);
    const nb::object capsule = nb::getattr(bit_generator, "capsule", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), "BitGenerator")) {
        throw nb::type_error("'bit_generator' must be a numpy.random.BitGenerator.");
    }
    auto* random = static_cast<BitGenerator*>(PyCapsule_GetPointer(capsule.ptr(), "BitGenerator"));
    const Released released;
    new (self) Exclusive<SegmentSearch>(groups, std::move(room), std::move(place), steps, heat, *random);
}

}  // namespace

void bind_planning(nb::module_& module) {
    nb::class_<Groups>(module, "Groups", "Groups of ops, and what they cost alone and in segments.")
        .def("__init__", &make_groups, "edges"_a, "tensor_bytes"_a, "core"_a, "cut_per_byte"_a, "dispatch"_a, "load"_a,
             "beside"_a, "conflicts"_a, "read"_a, "latency"_a, "bandwidth"_a, "passthrough"_a, "cliques"_a, "host"_a,
             "in_flight"_a, "outside"_a)
        .def(
            "merge", &merge_groups, "devices"_a, "segment_of"_a,
            "Merge consecutive segments on a device while the plan takes no longer; write the segment of each group, int32[G], "
            "and return the plan's seconds.")
        .def("divide", &divide_groups, "segment_of"_a, "devices"_a, "moves"_a, "seconds"_a,
             "Number segments, int32[G], in topological order; write the tensors between them, int32[E, 3], and their seconds, "
             "float64[S]; return how many tensors there are.");
    nb::class_<Exclusive<SegmentSearch>>(module, "SegmentSearch", "Simulated annealing of a placement of groups by its plan.")
        .def("__init__", &make_search, nb::keep_alive<1, 2>(), nb::keep_alive<1, 9>(), "groups"_a, "placement"_a, "feasible"_a,
             "param_bytes"_a, "memory"_a, "steps"_a, "heat"_a, "bit_generator"_a.none())
        .def(
            "advance",
            [](Exclusive<SegmentSearch>& self, std::int64_t steps) {
                const Use use(self, "The search");
                const Released released;
                self.advance(steps);
            },
            "steps"_a, "Try the next moves; the lock of the bit generator has to be held.")
        .def_prop_ro("over", [](Exclusive<SegmentSearch>& self) { return Use(self, "The search"), self.over(); })
        .def(
            "write_best",
            [](Exclusive<SegmentSearch>& self, const Array<std::int32_t>& placement) {
                const Use use(self, "The search");
                const auto written = placement.vector("placement", self.best().size());
                std::copy(self.best().begin(), self.best().end(), written.begin());
            },
            "placement"_a, "Write the best placement so far, int32[G].");
}

}  // namespace placeit
