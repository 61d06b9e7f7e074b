#include "simulator/throughput.hpp"

#include <algorithm>

#include "rules/queues.hpp"

namespace placeit {

double busy_seconds(const Tables& tables, Span<const Index> place, Span<double> busy) {
    const std::size_t devices = tables.memory.size(), links = devices + tables.clique.rows();
    std::fill(busy.begin(), busy.end(), 0.0);
    for (std::size_t v = 0; v < place.size(); ++v) {  // links do not count yet: their first entries hold the bytes of weights
        if (place[v] < 0) continue;
        busy[at(place[v])] += tables.compute(v, at(place[v]));
        busy[links + at(place[v])] += tables.op[v].param_bytes;
    }
    for (std::size_t d = 0; d < devices; ++d) {
        if (busy[d] == infinity || busy[links + d] > tables.memory[d]) return infinity;
        busy[links + d] = 0.0;
    }
    for (std::size_t p = 0; p < tables.edge.size(); ++p) {
        const Edge& edge = tables.edge[p];
        const Index src = place[edge.tail], target = place[edge.head];
        if (src < 0) continue;
        if (!edge.opens) continue;
        if (edge.following < 0) {  // most tensors: they have one consumer
            if (target < 0 || target == src) continue;
            busy[links + at(src) * devices + at(target)] += tables.link(at(src), at(target)).seconds(edge.size);
            if (tables.cut.empty()) continue;
            busy[at(src)] += tables.cut(p, at(src));
            busy[at(target)] += tables.cut(p, at(target));
            continue;
        }
        const auto first = static_cast<Index>(p);
        bool leaves = false;
        for (Index q = first; q >= 0; q = tables.edge[at(q)].following) {
            const Index dst = place[tables.edge[at(q)].head];
            if (dst < 0 || dst == src) continue;
            leaves = true;
            Index before = first;  // the first edge of the tensor towards this device
            while (before != q && place[tables.edge[at(before)].head] != dst) before = tables.edge[at(before)].following;
            if (before == q) {
                busy[links + at(src) * devices + at(dst)] += tables.link(at(src), at(dst)).seconds(tables.edge[at(q)].size);
                if (!tables.cut.empty()) busy[at(dst)] += tables.cut(at(q), at(dst));
            }
        }
        if (leaves && !tables.cut.empty()) busy[at(src)] += tables.cut(p, at(src));
    }
    for (std::size_t k = 0; k < tables.clique.rows(); ++k) {
        for (std::size_t d = 0; d < devices; ++d) {
            if (tables.clique(k, d)) busy[devices + k] += busy[d];
        }
    }
    double most = 0.0;
    for (const double seconds : busy) most = std::max(most, seconds);
    return most;
}

Index busiest_ops(const Tables& tables, Span<const Index> place, Span<const double> busy, Span<Index> ops) {
    const std::size_t devices = tables.memory.size(), links = devices + tables.clique.rows();
    const auto busiest = static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
    std::size_t count = 0;
    if (busiest >= links) {
        const auto src = static_cast<Index>((busiest - links) / devices), dst = static_cast<Index>((busiest - links) % devices);
        for (const Edge& edge : tables.edge) {
            if (place[edge.tail] != src || place[edge.head] != dst || count + 1 >= ops.size()) continue;
            ops[count++] = static_cast<Index>(edge.tail);
            ops[count++] = static_cast<Index>(edge.head);
        }
        return static_cast<Index>(count);
    }
    for (std::size_t v = 0; v < place.size(); ++v) {
        const Index d = place[v];
        if (d >= 0 && (at(d) == busiest || (busiest >= devices && tables.clique(busiest - devices, at(d))))) {
            ops[count++] = static_cast<Index>(v);
        }
    }
    return static_cast<Index>(count);
}

void seconds_per_request(const Tables& tables, Grid<const Index> placements, Span<double> seconds) {
    std::vector<double> busy(resources(tables));
    for (std::size_t b = 0; b < placements.rows(); ++b) seconds[b] = busy_seconds(tables, placements.row(b), busy);
}

}  // namespace placeit
