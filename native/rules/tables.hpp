// A problem as rules, simulators and searches read it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "rules/span.hpp"

namespace placeit {

constexpr double infinity = std::numeric_limits<double>::infinity();  // seconds of an op that cannot run

struct Op {
    std::uint32_t first;     // the out-edges of v are positions op[v].first to op[v + 1].first
    std::uint32_t in_first;  // the in-edges of v are positions in_edge[i], i from op[v].in_first to op[v + 1].in_first
    std::int32_t indegree;
    std::uint32_t order;  // the v-th op of a topological order
    double param_bytes;
};

/// An edge, at its position: edges are numbered anew by a stable sort by producer, so that those out of an op are adjacent.
struct Edge {
    std::uint32_t head;  // consumer
    std::uint32_t tail;  // producer
    std::uint32_t tensor;
    std::int32_t following;  // next position of the same tensor, or -1
    std::int32_t shared;     // number, among its op's, of a tensor with several edges; -1 with one edge
    bool opens;              // whether it is the first position of its tensor
    bool enters;             // whether it is the first position of its tensor towards its consumer
    double size;             // bytes
};

struct Link {
    double latency;    // seconds
    double bandwidth;  // bytes per second

    double seconds(double bytes) const { return latency + bytes / bandwidth; }
};

/// A weight that several ops read. The first of them counts it in its param_bytes.
struct TiedWeight {
    double bytes;
    std::vector<std::int32_t> ops;
};

/// A problem, in the layout of the kernels; V ops, E edges, D devices, C sets of devices that run one at a time.
struct Tables {
    Grid<const double> compute;          // [V, D] seconds; a view of the problem's array, the largest of all
    std::shared_ptr<const void> owner;   // keeps that array; it may be destroyed with the GIL only
    std::vector<Op> op;                  // [V + 1]
    std::vector<Edge> edge;              // [E]
    std::vector<std::uint32_t> in_edge;  // [E] positions, those into an op adjacent
    Matrix<Link> link;                   // [D, D]
    std::vector<std::int32_t> entries;   // ops without in-edges, ascending
    Matrix<double> cut;                  // [E, D] by position, or empty if it is zero everywhere
    std::vector<double> memory;          // [D] bytes
    Matrix<Flag> conflict;               // [D, D] whether two devices never run at the same time; empty if all may
    Matrix<Flag> clique;                 // [C, D] sets of several devices of which only one runs at a time
    std::vector<double> host;            // [D + 1] seconds that the host adds to a request, or empty if it adds nothing
    std::vector<TiedWeight> tied;        // weights that several ops read
    std::int32_t tensors = 0;            // one more than the highest number of a tensor
    std::int32_t shared = 0;             // the largest number of tensors of an op that have several edges

    std::int32_t ops() const { return static_cast<std::int32_t>(compute.rows()); }
    std::int32_t devices() const { return static_cast<std::int32_t>(memory.size()); }
    std::int32_t edges() const { return static_cast<std::int32_t>(edge.size()); }
};

/// The arrays of a problem, as Python has them; edges are numbered as there.
struct ProblemArrays {
    Grid<const double> compute;             // [V, D] seconds
    Grid<const std::int32_t> edges;         // [E, 2] producer and consumer
    Span<const double> edge_bytes;          // [E]
    Span<const std::int32_t> edge_tensor;   // [E] from 0 to E - 1
    Grid<const double> latency, bandwidth;  // [D, D] seconds, bytes per second
    Grid<const double> cut;                 // [E, D] seconds
    Span<const double> param_bytes;         // [V]
    Span<const double> memory;              // [D] bytes
    Grid<const Flag> conflicts, cliques;    // [D, D], [C, D]
    Span<const double> host;                // [D + 1] seconds; empty for nothing
    Span<const std::int32_t> order;         // [V] a topological order
    Grid<const double> tied;                // [N, 3] weights that several ops read: number, bytes and an op; numbers ascend
};

/// The tables view `problem.compute`, which has to outlive them; they copy the rest.
/// Throws std::invalid_argument, with a sentence that names the array, if an edge has an end that does not exist or goes
/// against `order`, if edges of different producers share a tensor, or if the problem is too large.
Tables make_tables(const ProblemArrays& problem);

/// Writes the bytes of weights that each device holds under a placement, [V], -1 for an op that is left out. A device holds a
/// weight that several of its ops read once.
void held_bytes(const Tables& tables, Span<const std::int32_t> place, Span<double> held);

/// Links by latency, [D, D] seconds, and bandwidth, [D, D] bytes per second.
Matrix<Link> link_table(Grid<const double> latency, Grid<const double> bandwidth);

/// Which devices never run at the same time, [D, D], as in Tables: empty if all may.
Matrix<Flag> conflict_table(Grid<const Flag> conflicts);

/// Seconds that the host adds to a request, as in Tables: empty if it adds nothing.
std::vector<double> host_table(Span<const double> host);

/// Returns the seconds that the host adds to a request of a placement, [V]: `host[d]` if all of it is on device d, else the
/// last entry; nothing if `host` is empty.
double host_seconds(Span<const double> host, Span<const std::int32_t> place);

enum class LinkModel { contention_free, channel };
enum class Discipline { fifo, priority, planned };

}  // namespace placeit
