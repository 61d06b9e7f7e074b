// List schedulers: ops one by one, in an order that respects precedence, each on the device where it finishes first, or where
// the rest of the graph is expected to.
//
// HEFT and CPOP: Topcuoglu et al., "Performance-effective and low-complexity task scheduling for heterogeneous computing",
// 2002. PEFT: Arabnejad and Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic cost table", 2014.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

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

struct Slot {
    double begin, end;  // seconds
};

/// Times at which a device is busy, ascending.
class Busy {
public:
    struct Gap {
        double at;              // seconds
        std::ptrdiff_t before;  // number of the slot that comes next
    };

    /// Returns the earliest gap from `ready` on in which `duration` fits.
    Gap earliest(double ready, double duration) const;
    void fill(const Gap& gap, double until) { slots_.insert(slots_.begin() + gap.before, {gap.at, until}); }
    /// Adds a time, united with the slots that it overlaps.
    void add(Slot added);

private:
    std::vector<Slot> slots_;
};

/// A plan under construction: ops one by one, after those that they read from, each in the earliest idle gap of a device that
/// holds it (HEFT, section 4). A device is idle while neither it nor one that conflicts with it runs anything. A tensor crosses
/// to a device once, where links are channels in the earliest gap of its channel.
///
/// `compute`: [V, D] seconds, infinite where an op may not run; `memory`: [D] bytes.
class Planner {
public:
    Planner(const Tables& tables, Grid<const double> compute, Span<const double> memory, LinkModel links, const Plan& plan);

    /// Finds where op `v` could go; the other methods are about the op that was looked at last.
    void look(std::size_t v);
    /// Whether the op may run on a device, which has room for its weights.
    bool takes(std::size_t v, std::size_t device) const {
        return compute_(v, device) != infinity && used_[device] + tables_.op[v].param_bytes <= memory_[device];
    }
    /// When its inputs are on a device, and when it would start and finish there, seconds.
    double ready(std::size_t device) const { return ready_[device]; }
    double start(std::size_t device) const { return gap_[device].at; }
    double finish(std::size_t v, std::size_t device) const { return start(device) + compute_(v, device); }
    /// Bytes of the weights on a device.
    double used(std::size_t device) const { return used_[device]; }
    /// Places the op.
    void put(std::size_t v, std::size_t device);

private:
    template <class Book>
    double fetch(std::size_t v, std::size_t device, const Book& book);

    const Tables& tables_;
    Grid<const double> compute_;
    Span<const double> memory_;
    Plan plan_;
    std::vector<Busy> busy_;            // [D]
    std::vector<double> used_, ready_;  // [D]
    std::vector<Busy> channel_;         // [D, D], or empty if links are without contention
    Matrix<double> arrived_;            // [T, D] when a tensor is on a device, seconds; infinite while it is not on its way
    std::vector<double> sent_;          // [D] scratch: until when an op's inputs keep the channels to a device busy
    std::vector<Busy::Gap> gap_;        // [D]
};

/// Plans ops in `order`, [V], which respects precedence, each on the device where the sum of its finish and `onward` is least.
/// `onward`: [V, D] seconds from the end of an op, zero for HEFT, the optimistic cost table for PEFT; the other arguments are
/// as for Planner. Returns whether the weights fit.
bool insertion_schedule(const Tables& tables, Span<const std::int32_t> order, Grid<const double> compute,
                        Grid<const double> onward, Span<const double> memory, LinkModel links, const Plan& plan);

/// Places ops in `order`, [V], which respects precedence, each where it starts earliest behind all ops that its device, and
/// devices that conflict with it, were given before. `lots`: [V, D]; of devices with equal starts the least lot is chosen.
void earliest_start_placement(const Tables& tables, Span<const std::int32_t> order, Grid<const double> lots,
                              Span<std::int32_t> place);

}  // namespace placeit
