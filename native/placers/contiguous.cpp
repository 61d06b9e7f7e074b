#include "placers/contiguous.hpp"

#include <algorithm>
#include <utility>

namespace placeit {
namespace {

/// A tensor in an order of ops.
struct Lifetime {
    std::size_t edge;        // its first position among the edges
    std::size_t made, last;  // positions in the order of its producer and of its last consumer
    double seconds;          // of a transfer over a mean link
};

/// The tensors that ops read and write, by positions in an order.
struct Flow {
    std::vector<Lifetime> tensor;                         // by number of the first edge's rank among tensors
    std::vector<std::vector<std::size_t>> reads, writes;  // [V] numbers of tensors; those that are read once for each op
};

Flow flow_of(const Tables& tables, Span<const std::int32_t> order) {
    const std::size_t ops = order.size(), devices = tables.memory.size();
    std::vector<std::size_t> position(ops);
    for (std::size_t i = 0; i < ops; ++i) position[static_cast<std::size_t>(order[i])] = i;
    double latency = 0.0, per_byte = 0.0, links = 0.0;
    for (std::size_t a = 0; a < devices; ++a) {
        for (std::size_t b = 0; b < devices; ++b) {
            if (a == b) continue;
            latency += tables.link(a, b).latency;
            per_byte += 1.0 / tables.link(a, b).bandwidth;
            links += 1.0;
        }
    }
    if (links > 0.0) latency /= links, per_byte /= links;
    Flow flow{{}, std::vector<std::vector<std::size_t>>(ops), std::vector<std::vector<std::size_t>>(ops)};
    std::vector<std::size_t> number(static_cast<std::size_t>(tables.tensors));
    for (std::size_t p = 0; p < tables.edge.size(); ++p) {  // the edges of a tensor follow its first one
        const Edge& edge = tables.edge[p];
        const std::size_t head = position[edge.head];
        if (edge.opens) {
            number[edge.tensor] = flow.tensor.size();
            flow.writes[position[edge.tail]].push_back(flow.tensor.size());
            flow.tensor.push_back({p, position[edge.tail], head, latency + edge.size * per_byte});
        }
        const std::size_t t = number[edge.tensor];
        flow.tensor[t].last = std::max(flow.tensor[t].last, head);
        if (edge.enters) flow.reads[head].push_back(t);
    }
    return flow;
}

/// Seconds of runs of consecutive ops on one device: `at(i, j)` of the ops between borders i and j; infinity if it cannot run
/// them.
class Runs {
public:
    Runs(const Tables& tables, const Flow& flow, Span<const std::int32_t> order, Span<const std::int32_t> borders,
         std::size_t d, SplitCost cost)
        : size_(borders.size()), seconds_(size_ * size_, infinity) {
        std::vector<double> ends(order.size() + 1);                   // seconds of tensors that leave no more after a position
        std::vector<std::size_t> entered(flow.tensor.size(), size_);  // the last run that a tensor entered
        std::vector<std::vector<std::size_t>> tied(order.size());     // weights that each op reads, with others
        for (std::size_t w = 0; w < tables.tied.size(); ++w) {
            for (const std::int32_t v : tables.tied[w].ops) tied[static_cast<std::size_t>(v)].push_back(w);
        }
        std::vector<std::size_t> held(tables.tied.size(), size_);  // the last run that held a weight
        for (std::size_t i = 0; i + 1 < size_; ++i) {
            const auto first = static_cast<std::size_t>(borders[i]);
            double compute = 0.0, enters = 0.0, leaves = 0.0, moves = 0.0, bytes = 0.0;
            std::fill(ends.begin(), ends.end(), 0.0);
            std::size_t j = i + 1;
            for (std::size_t at = first; j < size_; ++at) {
                const auto v = static_cast<std::size_t>(order[at]);
                compute += tables.compute(v, d);
                bytes += tables.op[v].param_bytes;
                for (const std::size_t w : tied[v]) {  // an op counts in param_bytes the weights that it is the first to read
                    const bool counts = tables.tied[w].ops[0] == order[at], known = std::exchange(held[w], i) == i;
                    if (counts == known) bytes += counts ? -tables.tied[w].bytes : tables.tied[w].bytes;
                }
                if (compute == infinity || bytes > tables.memory[d]) break;
                for (const std::size_t t : flow.reads[at]) {
                    const Lifetime& tensor = flow.tensor[t];
                    if (tensor.made >= first || entered[t] == i) continue;
                    entered[t] = i;
                    enters += cut(tables, tensor.edge, d);
                    moves += tensor.seconds;
                }
                for (const std::size_t t : flow.writes[at]) {
                    const double seconds = cut(tables, flow.tensor[t].edge, d);
                    leaves += seconds;
                    ends[flow.tensor[t].last] += seconds;
                }
                leaves -= ends[at];
                if (at + 1 == static_cast<std::size_t>(borders[j])) {
                    const double busy = compute + enters + std::max(0.0, leaves);
                    seconds_[i * size_ + j] = cost == SplitCost::sum ? busy + moves : std::max(busy, moves);
                    ++j;
                }
            }
        }
    }

    double at(std::size_t i, std::size_t j) const { return seconds_[i * size_ + j]; }

private:
    static double cut(const Tables& tables, std::size_t p, std::size_t d) {
        return tables.cut.empty() ? 0.0 : tables.cut(p, d);
    }

    std::size_t size_;
    std::vector<double> seconds_;  // [borders, borders]
};

/// The last run of a best split: of which class its device is, and the border where it begins.
struct LastRun {
    std::int32_t kind;
    std::uint32_t border;
};

}  // namespace

double contiguous_split(const Tables& tables, Span<const std::int32_t> order, Span<const std::int32_t> borders,
                        const std::vector<DeviceClass>& classes, SplitCost cost, Span<std::int32_t> place) {
    const std::size_t count = borders.size(), end = count - 1;
    const Flow flow = flow_of(tables, order);
    std::vector<Runs> runs;
    std::vector<std::size_t> stride;  // of the number of devices of a class, in the number of a state
    std::size_t states = 1;
    for (const DeviceClass& kind : classes) {
        runs.emplace_back(tables, flow, order, borders, static_cast<std::size_t>(kind[0]), cost);
        stride.push_back(states);
        states *= kind.size() + 1;
    }
    // the best split of the ops before each border over the devices of a state
    std::vector<double> least(states * count, infinity);
    std::vector<LastRun> last(states * count, {-1, 0});
    for (std::size_t s = 0; s < states; ++s) {
        least[s * count] = 0.0;
        for (std::size_t k = 0; k < classes.size(); ++k) {
            if (s / stride[k] % (classes[k].size() + 1) == 0) continue;
            const double* before = &least[(s - stride[k]) * count];
            for (std::size_t j = 1; j < count; ++j) {
                double& found = least[s * count + j];
                if (before[j] < found) {  // without this device
                    found = before[j];
                    last[s * count + j] = {static_cast<std::int32_t>(k), static_cast<std::uint32_t>(j)};
                }
                for (std::size_t i = 0; i < j; ++i) {
                    if (before[i] >= found) continue;
                    const double seconds = runs[k].at(i, j);
                    const double all = cost == SplitCost::sum ? before[i] + seconds : std::max(before[i], seconds);
                    if (all < found) {
                        found = all;
                        last[s * count + j] = {static_cast<std::int32_t>(k), static_cast<std::uint32_t>(i)};
                    }
                }
            }
        }
    }
    const double best = least[(states - 1) * count + end];
    if (best == infinity) return best;
    std::vector<std::size_t> left(classes.size());
    for (std::size_t k = 0; k < classes.size(); ++k) left[k] = classes[k].size();
    for (std::size_t s = states - 1, j = end; j > 0;) {
        const LastRun& run = last[s * count + j];
        const auto k = static_cast<std::size_t>(run.kind);
        const std::int32_t device = classes[k][--left[k]];
        for (auto at = static_cast<std::size_t>(borders[run.border]); at < static_cast<std::size_t>(borders[j]); ++at) {
            place[static_cast<std::size_t>(order[at])] = device;
        }
        s -= stride[k];
        j = run.border;
    }
    return best;
}

}  // namespace placeit
