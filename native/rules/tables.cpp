#include "rules/tables.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace placeit {

namespace {

template <class T>
bool any(Grid<const T> grid) {
    const auto values = grid.all();
    return std::any_of(values.begin(), values.end(), [](T value) { return value != 0; });
}

constexpr std::size_t largest = std::numeric_limits<std::int32_t>::max();

/// Checks for indices outside the arrays.
void check(const ProblemArrays& problem) {
    const std::size_t ops = problem.compute.rows(), devices = problem.compute.columns(), edges = problem.edges.rows();
    if (ops + edges > largest || devices > 30'000 || devices + devices * devices > largest - (ops + edges)) {
        throw std::invalid_argument(
            "'compute' and 'edges' are too large: ops, edges and pairs of devices are numbered in 31 bits.");
    }
    std::vector<std::int32_t> rank(ops, -1);  // of each op in the order
    for (std::size_t i = 0; i < ops; ++i) {
        const auto v = static_cast<std::size_t>(problem.order[i]);
        if (v >= ops || rank[v] >= 0) throw std::invalid_argument("'order' does not hold every op once.");
        rank[v] = static_cast<std::int32_t>(i);
    }
    std::vector<std::int32_t> producer(edges, -1);  // of each tensor
    for (std::size_t e = 0; e < edges; ++e) {
        const auto tail = static_cast<std::size_t>(problem.edges(e, 0)), head = static_cast<std::size_t>(problem.edges(e, 1));
        if (tail >= ops || head >= ops) throw std::invalid_argument("'edges' holds an op that does not exist.");
        if (rank[tail] >= rank[head]) throw std::invalid_argument("'order' is not a topological order of 'edges'.");
        const auto tensor = static_cast<std::size_t>(problem.edge_tensor[e]);
        if (tensor >= edges)
            throw std::invalid_argument("'edge_tensor' holds a number that is negative or not below the number of edges.");
        if (producer[tensor] >= 0 && producer[tensor] != problem.edges(e, 0)) {
            throw std::invalid_argument("'edge_tensor' has one number for tensors of several ops.");
        }
        producer[tensor] = problem.edges(e, 0);
    }
}

}  // namespace

Matrix<Link> link_table(Grid<const double> latency, Grid<const double> bandwidth) {
    Matrix<Link> link(latency.rows(), latency.columns());
    for (std::size_t i = 0; i < link.values().size(); ++i) link.values()[i] = {latency.data()[i], bandwidth.data()[i]};
    return link;
}

Matrix<Flag> conflict_table(Grid<const Flag> conflicts) {
    return any(conflicts) ? copy(conflicts) : Matrix<Flag>();
}

std::vector<double> host_table(Span<const double> host) {
    const bool free = std::all_of(host.begin(), host.end(), [](double seconds) { return seconds == 0.0; });
    return free ? std::vector<double>() : copy(host);
}

double host_seconds(Span<const double> host, Span<const std::int32_t> place) {
    if (host.empty() || place.empty()) return 0.0;
    const bool alone = std::all_of(place.begin(), place.end(), [&](std::int32_t d) { return d == place[0]; });
    return host[alone ? static_cast<std::size_t>(place[0]) : host.size() - 1];
}

Tables make_tables(const ProblemArrays& problem) {
    check(problem);
    const std::size_t ops = problem.compute.rows(), devices = problem.compute.columns(), edges = problem.edges.rows();
    Tables tables;
    tables.compute = problem.compute;
    tables.link = link_table(problem.latency, problem.bandwidth);
    tables.memory = copy(problem.memory);
    tables.conflict = conflict_table(problem.conflicts);
    tables.clique = copy(problem.cliques);
    tables.host = host_table(problem.host);

    tables.op.resize(ops + 1);
    for (std::size_t v = 0; v < ops; ++v) {
        tables.op[v].order = static_cast<std::uint32_t>(problem.order[v]);
        tables.op[v].param_bytes = problem.param_bytes[v];
    }
    for (std::size_t e = 0; e < edges; ++e) {
        ++tables.op[static_cast<std::size_t>(problem.edges(e, 0)) + 1].first;
        ++tables.op[static_cast<std::size_t>(problem.edges(e, 1)) + 1].in_first;
        ++tables.op[static_cast<std::size_t>(problem.edges(e, 1))].indegree;
    }
    for (std::size_t v = 0; v < ops; ++v) {
        tables.op[v + 1].first += tables.op[v].first;
        tables.op[v + 1].in_first += tables.op[v].in_first;
        if (tables.op[v].indegree == 0) tables.entries.push_back(static_cast<std::int32_t>(v));
    }

    for (std::size_t i = 0; i < problem.tied.rows(); ++i) {
        if (i == 0 || problem.tied(i, 0) != problem.tied(i - 1, 0)) tables.tied.push_back({problem.tied(i, 1), {}});
        tables.tied.back().ops.push_back(static_cast<std::int32_t>(problem.tied(i, 2)));
    }

    std::vector<std::size_t> by_tail(edges);  // number of the edge at each position
    std::iota(by_tail.begin(), by_tail.end(), 0);
    std::stable_sort(by_tail.begin(), by_tail.end(),
                     [&](std::size_t a, std::size_t b) { return problem.edges(a, 0) < problem.edges(b, 0); });
    tables.edge.resize(edges);
    std::vector<std::uint32_t> position(edges);
    if (any(problem.cut)) tables.cut = Matrix<double>(edges, devices);
    for (std::size_t p = 0; p < edges; ++p) {
        const std::size_t e = by_tail[p];
        position[e] = static_cast<std::uint32_t>(p);
        Edge& edge = tables.edge[p];
        edge.tail = static_cast<std::uint32_t>(problem.edges(e, 0));
        edge.head = static_cast<std::uint32_t>(problem.edges(e, 1));
        edge.tensor = static_cast<std::uint32_t>(problem.edge_tensor[e]);
        edge.size = problem.edge_bytes[e];
        tables.tensors = std::max(tables.tensors, problem.edge_tensor[e] + 1);
        if (!tables.cut.empty()) std::copy_n(problem.cut.row(e).begin(), devices, tables.cut.row(p).begin());
    }
    tables.in_edge.resize(edges);
    std::vector<std::uint32_t> filled(ops);
    for (std::size_t e = 0; e < edges; ++e) {
        const auto head = static_cast<std::size_t>(problem.edges(e, 1));
        tables.in_edge[tables.op[head].in_first + filled[head]++] = position[e];
    }
    // edges of one tensor form a chain, in edge order
    std::vector<std::int32_t> last(edges, -1);  // position of each tensor
    std::vector<std::int32_t> shared(ops);      // numbers given to an op's tensors
    for (std::size_t p = 0; p < edges; ++p) {
        Edge& edge = tables.edge[p];
        const std::int32_t before = std::exchange(last[edge.tensor], static_cast<std::int32_t>(p));
        edge.following = edge.shared = -1;
        edge.opens = before < 0;
        if (before >= 0) tables.edge[static_cast<std::size_t>(before)].following = static_cast<std::int32_t>(p);
    }
    for (std::size_t p = 0; p < edges; ++p) {
        if (!tables.edge[p].opens || tables.edge[p].following < 0) continue;
        const std::int32_t number = shared[tables.edge[p].tail]++;
        tables.shared = std::max(tables.shared, number + 1);
        for (auto q = static_cast<std::int32_t>(p); q >= 0; q = tables.edge[static_cast<std::size_t>(q)].following) {
            tables.edge[static_cast<std::size_t>(q)].shared = number;
        }
    }
    std::vector<std::int32_t> entered(ops, -1);  // the last tensor that entered an op: valid while one tensor is followed
    for (std::size_t p = 0; p < edges; ++p) {
        if (!tables.edge[p].opens) continue;
        const auto tensor = static_cast<std::int32_t>(tables.edge[p].tensor);
        for (auto q = static_cast<std::int32_t>(p); q >= 0; q = tables.edge[static_cast<std::size_t>(q)].following) {
            Edge& edge = tables.edge[static_cast<std::size_t>(q)];
            edge.enters = std::exchange(entered[edge.head], tensor) != tensor;
        }
    }
    return tables;
}

void held_bytes(const Tables& tables, Span<const std::int32_t> place, Span<double> held) {
    std::fill(held.begin(), held.end(), 0.0);
    for (std::size_t v = 0; v < place.size(); ++v) {
        if (place[v] >= 0) held[static_cast<std::size_t>(place[v])] += tables.op[v].param_bytes;
    }
    if (tables.tied.empty()) return;
    std::vector<std::size_t> holds(held.size());  // one more than the number of the last weight that each device held
    for (std::size_t w = 0; w < tables.tied.size(); ++w) {
        const TiedWeight& weight = tables.tied[w];
        for (const std::int32_t v : weight.ops) {
            const std::int32_t device = place[static_cast<std::size_t>(v)];
            if (device < 0) continue;
            const auto d = static_cast<std::size_t>(device);
            if (std::exchange(holds[d], w + 1) != w + 1 && v != weight.ops[0]) held[d] += weight.bytes;
        }
    }
}

}  // namespace placeit
