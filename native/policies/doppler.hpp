// DOPPLER (Yao et al.): episodes that place a problem op by op, and both policies at work in them.
//
// B episodes of V ops on D devices, by an estimate as list schedulers make it: an op starts when the ops that its device, and
// those that conflict with it, were given before have ended and its inputs have arrived over links without contention.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

constexpr std::size_t HOPS = 4;             // how far the affinity of ops reaches, in edges
constexpr std::size_t DEVICE_FEATURES = 5;  // load, load of producers, first start and last end of inputs, earliest start
constexpr std::size_t DEVICE_INPUTS = DEVICE_FEATURES + 1 + HOPS;  // with the op's compute there, and affinities

/// How likely walks of 1 to HOPS edges between different ops are, as rows of a sparse matrix.
struct Affinity {
    std::vector<std::int64_t> ptr;  // [V + 1] where the row of each op, at which walks end, begins
    std::vector<std::int64_t> op;   // [N] where walks begin
    Matrix<float> share;            // [N, HOPS]
};

/// Walks go from op u to `to[k]` with the probability `chance[k]`, k from `ptr[u]` to `ptr[u + 1]`. Shares below 0.001 are left
/// out, and so are shares between an op and itself.
Affinity affinity(Span<const std::int64_t> ptr, Span<const std::int64_t> to, Span<const double> chance);

/// Inputs of PLC about the devices at each step of episodes, and the devices that it may choose.
struct Seen {
    Grid<float> inputs;  // [B V D, DEVICE_INPUTS]
    Grid<Flag> allowed;  // [B V, D]

    Grid<float> inputs_at(std::size_t row) const {
        return {inputs.row(row * allowed.columns()).data(), allowed.columns(), DEVICE_INPUTS};
    }
};

/// How far episodes have come; views of arrays that the caller owns.
struct Episodes {
    const Tables& tables;
    const Affinity& affinity;
    Grid<std::int32_t> placement;  // [B, V] device, -1 where an op is not placed yet
    Grid<Flag> candidates;         // [B, V] ops that are not placed and whose producers are
    Grid<std::int32_t> waiting;    // [B, V] in-edges from ops that are not placed
    Grid<double> start, finish;    // [B, V] seconds, of ops that are placed
    Grid<double> load;             // [B, D] seconds of all ops on a device
    Grid<double> free;             // [B, D] when a device, and the ones that conflict with it, have ended their ops
    Grid<double> used;             // [B, D] bytes of weights on a device
    Grid<float> near;              // [B D V, HOPS] sums of the affinity of each op to the ops that are on a device

    std::size_t count() const { return placement.rows(); }
    std::size_t ops() const { return placement.columns(); }
    std::size_t devices() const { return load.columns(); }
    /// Whether all producers of an op are placed.
    bool is_ready(std::size_t b, std::size_t v) const;

    /// Write the features of all devices (D.2) for an op that is ready, [D, DEVICE_FEATURES]; seconds.
    void features(std::size_t b, std::size_t v, Grid<double> made) const;
    /// Write PLC's inputs about the devices for an op that is ready, and the devices it may choose, to a row of `seen`. It may
    /// choose devices that can run the op and have room for its weights; if no device has, all that can run it. `unit`: seconds
    /// that inputs are multiples of; `made`: [D, DEVICE_FEATURES], receives the features.
    void see(std::size_t b, std::size_t v, double unit, Grid<double> made, const Seen& seen, std::size_t row) const;
    /// Place an op that is ready.
    void place(std::size_t b, std::size_t v, std::size_t d) const;

private:
    double arrival(std::size_t b, std::size_t v, std::size_t d) const;
    Span<float> near_of(std::size_t b, std::size_t d, std::size_t v) const { return near.row((b * devices() + d) * ops() + v); }
};

/// Both policies, with parts that were computed beforehand; N is 1 where all episodes share a part, else B; W hidden units.
struct Policy {
    Grid<const float> select;  // [N, V] logits of SEL
    Grid<const float> node;    // [N V, W] the part of an op in the first layer of PLC
    Grid<const float> placed;  // [N V, W] its part there once it is on the device
    Grid<float> on;            // [B D, W] sums of `placed` over the ops on each device, kept up to date
    Grid<const float> into;    // [DEVICE_INPUTS, W] first layer for the inputs about a device
    Span<const float> bias;    // [W] its bias
    Grid<const float> onward;  // [W, W] second layer
    Span<const float> last;    // [W + 1] last layer, and its bias
};

/// Decisions, and the inputs at the time.
struct Decisions {
    Grid<std::int64_t> order;   // [B, V] op that was placed at each step
    Grid<std::int64_t> at;      // [B, V] step at which each op was placed
    Grid<std::int64_t> ready;   // [B, V] first step at which each op could have been placed
    Grid<std::int64_t> chosen;  // [B, V] device of each op
    Seen seen;                  // only where PLC decided
    Grid<Flag> decided;         // [B, V] steps at which it decided
};

/// How episodes are played.
struct Manner {
    bool select;     // whether SEL decides; else it is the op with the longest path to an exit
    bool place;      // whether PLC decides; else it is the device where the op can start first
    bool draw;       // whether answers are drawn from the policies; else they are the likeliest
    double explore;  // how often each of them takes any answer
};

/// Play steps `first` to `last` of all episodes. Throws std::invalid_argument if an episode has no op to place.
///
/// `kept`: [B, V] devices of ops that PLC does not place, -1 for the others. `rank`: [V] seconds to an exit. `unit`: seconds
/// that inputs are multiples of. `random`: [B] states of generators.
void play(std::size_t first, std::size_t last, const Episodes& episodes, const Decisions& record, const Policy& policy,
          const Manner& manner, Grid<const std::int32_t> kept, Span<const double> rank, double unit,
          Span<std::uint64_t> random);

}  // namespace placeit
