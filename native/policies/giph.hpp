// gpNet (GiPH, section 4.2.1 and Appendix B.1): a task graph, a device network and a placement as one graph.
#pragma once

#include <cstdint>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"
#include "simulator/simulation.hpp"

namespace placeit {

constexpr std::size_t GPNET_NODE_FEATURES = 8, GPNET_EDGE_FEATURES = 4;

/// Edges and features of a batch of gpNets; views of arrays that the caller owns.
struct GpNetBatch {
    Span<std::int64_t> src, dst;  // [M] nodes
    Grid<float> edges;            // [M, GPNET_EDGE_FEATURES] bytes, bandwidth, delay, seconds
    Grid<float> nodes;            // [N, GPNET_NODE_FEATURES]; features of the schedule, from the fourth on, are written
};

/// How a batch lays out one of its problems.
struct GpNetLayout {
    Grid<const std::int64_t> node;  // [V, D] row of the node of an op on a device, -1 if it cannot run there; with `pivots` the
                                    // op's row, whatever the device
    Span<const std::int64_t> first;  // [E] first row of the edges of a task edge, by position
    double bandwidth;                // bytes per second of the mean link
    double unit;                     // seconds of an average op, by which times are divided
    bool pivots;                     // whether only nodes of the placement are there, one for each op
};

/// One problem of a batch of gpNets.
class GpNet {
public:
    GpNet(const Tables& tables, const GpNetLayout& layout);

    const Tables& tables() const { return tables_; }
    /// How many rows of edges and of nodes a batch has at least.
    std::size_t edge_rows() const { return edge_rows_; }
    std::size_t node_rows() const { return node_rows_; }
    /// Whether each op can run where it is placed, [V].
    bool is_feasible(Span<const std::int32_t> place) const;

    /// Write all edges and the features of nodes for a feasible placement, [V]; returns its makespan, seconds.
    double set(Span<const std::int32_t> place, const GpNetBatch& batch);
    /// Write the edges next to an op that has been moved, and the features of nodes; returns the makespan, seconds.
    double move(std::size_t op, Span<const std::int32_t> place, const GpNetBatch& batch);

private:
    void connect(Span<const std::int32_t> place, std::size_t position, const GpNetBatch& batch) const;
    double observe(Span<const std::int32_t> place, Grid<float> nodes);
    void time_tails(Span<const std::int32_t> place);
    double transfer(std::size_t position, std::size_t source, std::size_t target) const;
    Span<const std::int32_t> options(std::size_t op, const std::int32_t& here) const;

    const Tables& tables_;
    Matrix<std::int64_t> node_;  // as in GpNetLayout
    std::vector<std::int64_t> first_;
    double bandwidth_, unit_;
    bool pivots_;
    Simulation simulation_;
    std::size_t edge_rows_ = 0, node_rows_ = 0;
    std::vector<std::int32_t> devices_;      // devices that each op can run on, op by op
    std::vector<std::size_t> first_device_;  // [V + 1] where the devices of an op begin
    Matrix<float> link_share_, link_delay_;  // [D, D] features of links: 1 / (1 + bandwidths of the mean), squashed latency
    std::vector<double> tail_;               // [V] seconds from the start of an op to the end, on the schedule as it is
};

}  // namespace placeit
