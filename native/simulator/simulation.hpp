// One request, or many, over one placement in virtual time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rules/machine.hpp"
#include "rules/span.hpp"
#include "rules/tables.hpp"
#include "simulator/events.hpp"
#include "simulator/one_request.hpp"

namespace placeit {

enum class Memory {
    weights_only,  // only weights count; more than a device's memory: infinity
    track,         // the peak of live tensors is recorded, too
    limit,         // a peak over a device's memory: infinity
};

struct Options {
    LinkModel links = LinkModel::contention_free;
    Discipline discipline = Discipline::fifo;
    Memory memory = Memory::weights_only;
    double noise = 0.0;        // half width of the factor on every duration
    std::uint64_t stream = 0;  // which random factors
};

/// Arrays to which a run of many requests is recorded; an empty one is not written.
struct Record {
    Grid<double> times;  // [2, R] when each request began and ended
    Grid<double> log;    // [2 * R, V + E] the start and the finish of every node of each, NaN of transfers that do not happen
};

/// Seconds of requests over placements: the workspace is allocated once, then used as often as wanted, by one thread.
class Simulation {
public:
    /// `tables` must outlive this; `slots`: most requests in flight.
    Simulation(const Tables& tables, Index slots);

    /// Returns seconds, the host's part included; infinity if an op cannot run where it is placed or memory is too small; NaN
    /// if a planned order waits for itself. `place`: [V], device numbers within range; `priority`: [V], or empty for the
    /// b-level under the placement.
    double makespan(Span<const Index> place, Span<const double> priority, const Options& options);

    /// Returns when the last of several requests has ended, seconds, with the host's part of one; else infinity or NaN, as
    /// makespan().
    /// `arrivals`: [R] seconds, ascending; a request that finds no free slot waits for one.
    double requests(Span<const Index> place, Span<const double> priority, const Options& options, Span<const double> arrivals,
                    const Record& record = {});

    /// When an op started and finished in the last request of slot 0, seconds.
    double start(Index op) const { return by_rules_ ? machine_->node(op).start : one_.start(op); }
    double finish(Index op) const { return by_rules_ ? machine_->node(op).finish : one_.finish(op); }

    /// Bytes that each device held at most, [D]: with Memory::weights_only, of weights.
    Span<const double> peak() const { return peak_; }

private:
    bool prepare(Span<const Index> place);
    double run(Span<const Index> place, const Options& options, Span<const double> arrivals, const Record& record);
    void hold(Index device, double bytes);
    void hold_outputs(Span<const Index> place, Index slot, std::size_t op);
    void release(Index slot, std::size_t position, Index device);

    const Tables* tables_;
    Index slots_;
    OneRequest one_;
    std::optional<Machine> machine_;  // for cases that one_ does not cover
    bool by_rules_ = false;           // whether it was used last
    std::vector<Event> events_;
    std::vector<double> duration_;       // [V] seconds of each op where it is
    std::vector<double> moving_, rank_;  // [E], [V]
    std::vector<double> live_, peak_;    // [D] bytes
    Matrix<std::int32_t> uses_;          // [R * T, D] unfinished users of a tensor where it is
    std::vector<std::size_t> number_;    // [R] of the request in a slot
};

/// Adds to the seconds of ops, [V], the time of devices for tensors that cross their borders: once per tensor and op.
void add_cuts(const Tables& tables, Span<const Index> place, Span<double> duration);

/// Simulates each of a batch of placements, [B, V], and writes the seconds, [B]; the order is shared by threads.
/// `priority`: [B, V], one row for all, or no row for b-levels; `seed`: of all random factors.
/// Throws std::out_of_range for a device that does not exist.
void makespans(const Tables& tables, Grid<const Index> placements, Grid<const double> priority, const Options& options,
               std::uint64_t seed, Span<const double> arrivals, Index slots, Index threads, Span<double> seconds);

/// Simulates requests over one placement, and writes a record and the most bytes that each device held, [D]; memory is tracked,
/// whatever the options say.
double record_requests(const Tables& tables, Span<const Index> place, Span<const double> priority, const Options& options,
                       std::uint64_t seed, Span<const double> arrivals, Index slots, const Record& record, Span<double> peak);

/// Writes the b-level of each op, [V] seconds, with the seconds of ops in the tables.
void b_level(const Tables& tables, Span<const Index> place, Span<double> rank);

}  // namespace placeit
