// How many requests a placement can serve: for how long one request keeps the busiest resource busy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

/// How many resources there are: devices, sets of devices that run one at a time, ordered pairs of devices.
inline std::size_t resources(const Tables& tables) {
    return tables.memory.size() + tables.clique.rows() + tables.memory.size() * tables.memory.size();
}

/// Writes for how many seconds one request keeps each resource busy, [D + C + D * D]; returns the most, infinity if an op
/// cannot run where it is placed or memory is too small. `place`: [V], -1 for an op that is left out.
double busy_seconds(const Tables& tables, Span<const std::int32_t> place, Span<double> busy);

/// The busy seconds of a placement while ops move: a move takes as long as its ops have neighbours. Sums round; `set` anew
/// makes them exact.
class Load {
public:
    explicit Load(const Tables& tables);

    /// Values a placement, [V], as busy_seconds does.
    double set(Span<const std::int32_t> place);
    /// Values the placement with some ops on another device, where they can run; `undo` takes the last move back.
    double move(const std::vector<std::size_t>& ops, std::int32_t to);
    void undo();

    Span<const double> busy() const { return busy_; }  // as busy_seconds writes them

private:
    const Tables& tables_;
    std::vector<std::int32_t> place_;                          // [V]
    std::vector<double> bytes_;                                // [D] of weights
    std::vector<double> busy_, before_;                        // now, and before the last move
    std::vector<std::pair<std::size_t, std::int32_t>> moves_;  // ops of the last move, and where they were
    std::vector<std::uint32_t> opening_;                       // [E] the opening edge of each edge's tensor
    std::vector<Flag> charged_;                                // [E] scratch: whether an opening edge is in `touched_`
    std::vector<std::uint32_t> touched_;                       // opening edges of the tensors of moved ops
};

/// Writes the ops that keep the busiest resource busy, [V], from the seconds that busy_seconds wrote; returns their number.
std::int32_t busiest_ops(const Tables& tables, Span<const std::int32_t> place, Span<const double> busy, Span<std::int32_t> ops);

/// Writes busy_seconds of each of a batch of placements, [B, V].
void seconds_per_request(const Tables& tables, Grid<const std::int32_t> placements, Span<double> seconds);

}  // namespace placeit
