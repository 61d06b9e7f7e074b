#include "rules/machine.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/exclusive.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placeit {

namespace {

/// What to start now; empty if the machine was told what cannot have happened.
using Told = std::optional<std::vector<Index>>;

Told told(const Machine& machine, bool possible = true) {
    if (!possible) return {};
    return std::vector<Index>(machine.told().begin(), machine.told().end());
}

}  // namespace

void bind_machine(nb::module_& module) {
    const auto of_slot = [](auto tell) {
        return [tell](Exclusive<Machine>& machine, Index slot) {
            const Use use(machine, "The machine");
            check_index("slot", slot, machine.slots());
            return tell(machine, slot);
        };
    };
    const auto of_node = [](auto tell, bool op) {
        return [tell, op](Exclusive<Machine>& machine, Index node) {
            const Use use(machine, "The machine");
            check_index("node", node, std::int64_t{machine.slots()} * machine.nodes());
            const bool is_op = at(node % machine.nodes()) < machine.place().size();
            if (is_op != op)
                throw nb::index_error(op ? "'node' is a transfer, not an op." : "'node' is an op, not a transfer.");
            return told(machine, (machine.*tell)(node));
        };
    };
    nb::class_<Exclusive<Machine>>(
        module, "Machine",
        "The rules of one placement, and the state of its requests. Methods tell what has happened, and return what to\n"
        "start now: nodes, and -1 - r for a slot whose request has ended; None if it cannot have happened.")
        .def(
            "__init__",
            [](Exclusive<Machine>* self, const Tables& tables, const Array<const Index>& place, LinkModel links,
               Discipline queue, Index slots) {
                const auto where = placement_of(tables, place);
                if (slots < 1) throw nb::value_error("'slots' must be at least 1.");
                new (self) Exclusive<Machine>(tables, where, links, queue, slots);
            },
            "tables"_a, "place"_a, "links"_a, "queue"_a, "slots"_a, nb::keep_alive<1, 2>())
        .def(
            "rank",
            [](Exclusive<Machine>& machine, const Array<const double>& priority) {
                const Use use(machine, "The machine");
                machine.rank(ordered("priority", priority.vector("priority", machine.place().size())));
            },
            "priority"_a, "Give every op its priority, float64[V], the higher goes first.")
        .def(
            "grow",
            [](Exclusive<Machine>& machine, Index slots) {
                const Use use(machine, "The machine");
                if (slots < machine.slots()) throw nb::value_error("'slots' must not be fewer than there are.");
                machine.grow(slots);
            },
            "slots"_a, "Make room for 'slots' requests in flight.")
        .def(
            "share",
            [](Exclusive<Machine>& machine, Index device) {
                const Use use(machine, "The machine");
                check_index("device", device, machine.tables().devices());
                machine.share(device);
            },
            "device"_a, "Have a device run any number of ops at once.")
        .def("begin", of_slot([](Machine& machine, Index r) { return told(machine, machine.begin(r)); }), "slot"_a)
        .def("op_finished", of_node(&Machine::op_finished, true), "node"_a)
        .def("transfer_sent", of_node(&Machine::transfer_sent, false), "node"_a)
        .def("transfer_finished", of_node(&Machine::transfer_finished, false), "node"_a)
        .def("abort", of_slot([](Machine& machine, Index r) {
                 machine.abort(r);
                 return *told(machine);
             }),
             "slot"_a)
        .def(
            "device_lost",
            [](Exclusive<Machine>& machine, Index device) {
                const Use use(machine, "The machine");
                check_index("device", device, machine.tables().devices());
                machine.device_lost(device);
                return *told(machine);
            },
            "device"_a)
        .def("aborted", of_slot([](Machine& machine, Index r) { return machine.request(r).aborted; }), "slot"_a,
             "Return whether the request of a slot is aborted.")
        .def("running", of_slot([](Machine& machine, Index r) {
                 std::vector<Index> found;
                 for (Index n = r * machine.nodes(); n < (r + 1) * machine.nodes(); ++n) {
                     if (machine.node(n).on_its_way()) found.push_back(n);
                 }
                 return found;
             }),
             "slot"_a, "Return the nodes of a slot that were started and have not finished.");
}

}  // namespace placeit
