// Partitions of groups into segments: their order, their seconds, and which segments are worth merging.
#pragma once

#include <cstdint>
#include <vector>

#include "planning/groups.hpp"
#include "rules/span.hpp"
#include "rules/tables.hpp"
#include "simulator/one_request.hpp"

namespace placeit {

/// Values partitions of the same groups one after the other, in memory that it allocates once; for one thread.
class Segmentation {
public:
    /// The groups have to outlive it.
    explicit Segmentation(const Groups& groups);

    /// Merge consecutive segments on a device while the makespan does not grow, from one segment per group on; if steady, while
    /// the seconds per request do not grow. Writes the segment of each group, [G], in no particular order; returns these
    /// seconds, infinity if a group cannot run where it is. `devices`: [G].
    double merge(Span<const std::int32_t> devices, Span<std::int32_t> segment_of);

    /// Number given segments in topological order, and compute their seconds; false if there is no such order.
    /// `segment_of`: [G] of 0 to count - 1; `devices`: [G].
    bool divide(Span<const std::int32_t> segment_of, std::int32_t count, Span<const std::int32_t> devices);

    // Results of the last partition, if it has a topological order:
    Span<const std::int32_t> segment_of() const { return of_; }  // [G]
    Span<const Move> moves() const { return moves_; }            // [M] each tensor once for each segment it enters; sorted
    Span<const double> seconds() const { return seconds_; }      // [S]; zero for segments that run nothing

private:
    void cross(Span<const std::int32_t> segment_of);
    bool order(Span<const std::int32_t> segment_of);
    void connect();
    void price(Span<const std::int32_t> devices);
    void slow_down_steadily();
    void slow_down_by_overlap();
    double find_busy();
    double simulate();
    double value(Span<const std::int32_t> labels, Span<const std::int32_t> devices);

    const Groups& groups_;
    std::size_t count_ = 0;                // segments, S
    std::vector<std::int32_t> of_;         // [G] segment
    std::vector<Move> crossing_;           // [M] in the order of the producer groups
    std::vector<Move> moves_;              // [M] sorted by producer, consumer and tensor
    std::vector<double> cut_bytes_;        // [G] bytes that cross a segment's border at each group
    std::vector<std::int32_t> by_tensor_;  // [E] edges by tensor
    std::vector<Flag> enters_;             // [E] whether an edge is the first that takes its tensor into the consumer's segment
    std::vector<std::int32_t> entered_;    // [S] the tensor that entered last
    std::vector<Flag> left_;               // [T] whether a tensor leaves a segment
    std::vector<std::int32_t> waiting_, sequence_, number_, first_, leaving_;
    std::vector<std::int32_t> place_;                                    // [S] device
    std::vector<Flag> runs_;                                             // [S] whether a segment runs anything
    std::vector<double> seconds_, load_, start_, end_, beside_, share_;  // [S]
    std::vector<double> busy_;  // [D + C + D * D] seconds for which one request keeps each resource busy
    OneRequest simulation_;
    std::vector<Op> op_;                                         // [S + 1]
    std::vector<Edge> edge_;                                     // [M]
    std::vector<std::int32_t> labels_, trial_, compact_, rank_;  // [G]
    std::vector<double> group_start_;                            // [G] when the segment of each group starts
};

}  // namespace placeit
