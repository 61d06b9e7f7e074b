// The event loop for one request, where nothing but weights counts in memory and no order is planned.
//
// It does what the machine's rules say, only faster, and tests hold the two to each other. The rules have an event for every
// transfer. Here, when a transfer starts, its consumers are told at once when it will end: an op has one event, when the last
// of its inputs arrives, at the place among simultaneous events that the last transfer's would have; and a channel has one when
// something waits for it.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/queues.hpp"
#include "rules/span.hpp"
#include "rules/tables.hpp"
#include "simulator/events.hpp"
#include "simulator/line.hpp"

namespace placeit {

/// The parts of a problem that the loops read.
struct Network {
    Span<const Op> op;          // [V + 1]
    Span<const Edge> edge;      // [E]
    Grid<const Link> link;      // [D, D]
    Grid<const Flag> conflict;  // [D, D], or empty

    Network() = default;
    Network(Span<const Op> ops, Span<const Edge> edges, Grid<const Link> links, Grid<const Flag> conflicts)
        : op(ops), edge(edges), link(links), conflict(conflicts) {}
    explicit Network(const Tables& tables) : Network(tables.op, tables.edge, tables.link, tables.conflict) {}
};

/// The workspace of one request, for one thread; run it as often as wanted.
class OneRequest {
public:
    /// Take a problem; the arrays that it refers to must outlive its use. Memory is kept from one problem to the next.
    void take(const Network& network);

    /// Simulate ops whose seconds are known, [V], over a placement, [V]. No devices may conflict under fifo.
    /// `priority`: [V] the highest first, or empty for the b-level; unused with fifo.
    /// `noise`, `stream`: of the random factors on all seconds.
    /// Returns seconds.
    double run(Span<const Index> place, Span<const double> duration, Span<const double> priority, LinkModel links,
               Discipline discipline, double noise = 0.0, std::uint64_t stream = 0);

    /// When an op started and finished, seconds.
    double start(Index op) const { return op_[at(op)].start; }
    double finish(Index op) const { return op_[at(op)].finish; }

private:
    struct OpState {
        Event ready;           // when and as which event the last input known so far arrives
        double start, finish;  // seconds
        std::int32_t pending;  // inputs that have not fired, nor are on their way
        Index device;
    };
    struct Channel {
        Line line;              // transfers that wait
        Event idle;             // when, and as which event, it has sent its current tensor
        bool expected;          // whether there is an event for that
        std::uint32_t run = 0;  // the last run that used it
    };
    struct Sent {
        Index op, position;
    };
    template <bool fifo, bool contended, bool noisy>
    class Loop;

    Network network_;
    Index ops_ = 0, edges_ = 0, devices_ = 0;
    std::vector<Index> entries_;    // ops without in-edges
    std::vector<OpState> op_;       // [V]
    std::vector<Waiting> waiting_;  // [V]
    std::vector<Line> device_;      // [D] ops that have all their inputs
    std::vector<Channel> channel_;  // [D * D], or empty as long as no links are channels
    std::uint32_t run_ = 0;         // number of the run, from 1 on
    std::vector<Event> transfer_;   // [E] when, and as which event, the transfer of a first position arrives
    std::vector<double> moving_;    // [E] seconds of the transfer that each edge needs if its ends are apart
    std::vector<double> rank_;      // [V]
    std::vector<Index> opened_;     // [D] scratch: channels that may take their next transfer
    Matrix<Sent> sent_;             // [K, D] which op sent its k-th shared tensor last to a device, and from where
    std::vector<Event> events_;     // memory of the heap of all events
};

/// Writes the longest path from each op to an exit under a placement, transfers between devices included, [V] seconds (the
/// upward rank of Topcuoglu et al. 2002 with the costs of one placement). Also writes the seconds of the transfer of each edge,
/// [E], 0 within a device.
void b_level(const Network& network, Span<const Index> place, Span<const double> duration, Span<double> moving,
             Span<double> rank);

}  // namespace placeit
