// List schedulers: ops one by one, in an order that respects precedence, each on the device where it finishes first, or where
// the rest of the graph is expected to.
//
// HEFT and CPOP: Topcuoglu et al., "Performance-effective and low-complexity task scheduling for heterogeneous computing",
// 2002. PEFT: Arabnejad and Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic cost table", 2014.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

/// When the tensor of the edge at position `p` is on device `to`, over a link without contention, seconds. `from`: where its
/// producer is, which finishes at `finish`.
inline double arrival(const Tables& tables, std::size_t p, std::size_t from, std::size_t to, double finish) {
    if (from == to) return finish;
    const double seconds = tables.link(from, to).seconds(tables.edge[p].size);
    return finish + (tables.cut.empty() ? seconds : seconds + tables.cut(p, from) + tables.cut(p, to));
}

/// When all inputs of op `v` are on device `d`, over links without contention; not before `ready`. Seconds.
/// `place`, `finish`: [V], known of all ops that `v` reads from.
inline double last_arrival(const Tables& tables, std::int32_t v, std::int32_t d, double ready, Span<const std::int32_t> place,
                           Span<const double> finish) {
    const auto op = static_cast<std::size_t>(v), to = static_cast<std::size_t>(d);
    for (std::size_t i = tables.op[op].in_first; i < tables.op[op + 1].in_first; ++i) {
        const std::size_t p = tables.in_edge[i], u = tables.edge[p].tail;
        ready = std::max(ready, arrival(tables, p, static_cast<std::size_t>(place[u]), to, finish[u]));
    }
    return ready;
}

/// Writes the mean length of the longest path from the start of each op to an exit, [V] seconds (equation 8, HEFT).
/// `compute`: [V] mean seconds of each op; `comm`: [E] mean seconds of each edge, by position.
void upward_ranks(const Tables& tables, Span<const double> compute, Span<const double> comm, Span<double> rank);

/// Writes the mean length of the longest path from an entry to the start of each op, [V] seconds (equation 10, CPOP).
void downward_ranks(const Tables& tables, Span<const double> compute, Span<const double> comm, Span<double> rank);

/// Writes the optimistic cost table, [V, D] seconds (PEFT): the longest path from the end of an op on a device to
/// an exit, where each op on the path has the device that is best for what comes after it. `comm`: [E] mean seconds of each
/// edge between different devices, by position.
void optimistic_costs(const Tables& tables, Span<const double> comm, Grid<double> cost);

/// Writes the order, [V], in which ops leave a ready list. `by_priority`: [V], every op once, the most urgent first.
void ready_order(const Tables& tables, Span<const std::int32_t> by_priority, Span<std::int32_t> order);

/// A placement with its schedule, each [V]; start and finish in seconds.
struct Plan {
    Span<std::int32_t> place;
    Span<double> start, finish;
};

/// Plans ops in `order`, [V], which respects precedence, each in the earliest idle gap that holds it (HEFT, section 4), on the
/// device where its finish and what it takes from there on come first. A device is idle while neither it nor one that conflicts
/// with it runs anything. `compute`: [V, D] seconds, infinite where an op may not run; `onward`: [V, D] seconds from the end of
/// an op, zero for HEFT, the optimistic cost table for PEFT; `memory`: [D] bytes. Returns whether the weights fit.
bool insertion_schedule(const Tables& tables, Span<const std::int32_t> order, Grid<const double> compute,
                        Grid<const double> onward, Span<const double> memory, const Plan& plan);

/// Places ops in `order`, [V], which respects precedence, each where it starts earliest behind all that its device, and those
/// that conflict with it, were given before. `lots`: [V, D]; of devices with equal starts the one of the least lot is chosen.
void earliest_start_placement(const Tables& tables, Span<const std::int32_t> order, Grid<const double> lots,
                              Span<std::int32_t> place);

}  // namespace placeit
