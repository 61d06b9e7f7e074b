#include "policies/doppler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "placers/list_scheduling.hpp"
#include "policies/vectors.hpp"
#include "simulator/random.hpp"

namespace placeit {
namespace {

constexpr double LEAST = 1e-3;  // affinity of ops below which they are left out
constexpr float SLOPE = 0.01f;  // of the leaky ReLU
constexpr std::size_t LOAD = 0, PRODUCERS = 1, FIRST_START = 2, LAST_END = 3, EARLIEST_START = 4;

}  // namespace

Affinity affinity(Span<const std::int64_t> ptr, Span<const std::int64_t> to, Span<const double> chance) {
    struct Walks {
        std::int64_t begin, end;
        std::array<double, HOPS> share;
    };
    const std::size_t ops = ptr.size() - 1;
    std::vector<Walks> found;
    for (std::size_t v = 0; v < ops; ++v) {
        Matrix<double> walk(ops, HOPS);  // chances to be at each op after each number of steps from v on
        for (std::size_t hop = 0; hop < HOPS; ++hop) {
            for (std::size_t u = 0; u < ops; ++u) {
                const double here = hop > 0 ? walk(u, hop - 1) : static_cast<double>(u == v);
                if (!(here > 0)) continue;
                for (std::int64_t k = ptr[u]; k < ptr[u + 1]; ++k) walk(to[k], hop) += here * chance[k];
            }
        }
        for (std::size_t u = 0; u < ops; ++u) {
            Walks met{static_cast<std::int64_t>(v), static_cast<std::int64_t>(u), {}};
            std::transform(walk.row(u).begin(), walk.row(u).end(), met.share.begin(),
                           [](double x) { return x < LEAST ? 0.0 : x; });
            if (u != v && std::any_of(met.share.begin(), met.share.end(), [](double x) { return x != 0.0; }))
                found.push_back(met);
        }
    }
    std::stable_sort(found.begin(), found.end(), [](const Walks& a, const Walks& b) { return a.end < b.end; });
    Affinity made{std::vector<std::int64_t>(ops + 1, 0), {}, Matrix<float>(found.size(), HOPS)};
    for (std::size_t i = 0; i < found.size(); ++i) {
        ++made.ptr[found[i].end + 1];
        made.op.push_back(found[i].begin);
        for (std::size_t hop = 0; hop < HOPS; ++hop) made.share(i, hop) = static_cast<float>(found[i].share[hop]);
    }
    for (std::size_t v = 0; v < ops; ++v) made.ptr[v + 1] += made.ptr[v];
    return made;
}

bool Episodes::is_ready(std::size_t b, std::size_t v) const {
    for (std::size_t i = tables.op[v].in_first; i < tables.op[v + 1].in_first; ++i) {
        if (placement(b, tables.edge[tables.in_edge[i]].tail) < 0) return false;
    }
    return true;
}

double Episodes::arrival(std::size_t b, std::size_t v, std::size_t d) const {
    return last_arrival(tables, static_cast<std::int32_t>(v), static_cast<std::int32_t>(d), free(b, d), placement.row(b),
                        finish.row(b));
}

void Episodes::features(std::size_t b, std::size_t v, Grid<double> made) const {
    for (std::size_t d = 0; d < made.rows(); ++d) {
        made(d, LOAD) = load(b, d);
        made(d, PRODUCERS) = made(d, LAST_END) = 0.0;
        made(d, FIRST_START) = infinity;
        made(d, EARLIEST_START) = arrival(b, v, d);
    }
    const auto producer = [&](std::size_t i) { return std::size_t{tables.edge[tables.in_edge[i]].tail}; };
    const std::size_t begin = tables.op[v].in_first, end = tables.op[v + 1].in_first;
    for (std::size_t i = begin; i < end; ++i) {
        const std::size_t u = producer(i);
        bool seen = false;  // an op that gives several tensors counts once
        for (std::size_t j = begin; j < i && !seen; ++j) seen = producer(j) == u;
        if (seen) continue;
        const auto d = static_cast<std::size_t>(placement(b, u));
        made(d, PRODUCERS) += tables.compute(u, d);
        made(d, FIRST_START) = std::min(made(d, FIRST_START), start(b, u));
        made(d, LAST_END) = std::max(made(d, LAST_END), finish(b, u));
    }
    for (std::size_t d = 0; d < made.rows(); ++d) {
        if (made(d, FIRST_START) == infinity) made(d, FIRST_START) = 0.0;
    }
}

void Episodes::place(std::size_t b, std::size_t v, std::size_t d) const {
    const double begun = arrival(b, v, d), ended = begun + tables.compute(v, d);
    start(b, v) = begun;
    finish(b, v) = ended;
    placement(b, v) = static_cast<std::int32_t>(d);
    candidates(b, v) = false;
    free(b, d) = ended;
    for (std::size_t other = 0; other < tables.conflict.rows(); ++other) {
        if (tables.conflict(d, other)) free(b, other) = std::max(free(b, other), ended);
    }
    load(b, d) += tables.compute(v, d);
    used(b, d) += tables.op[v].param_bytes;
    for (std::size_t p = tables.op[v].first; p < tables.op[v + 1].first; ++p) {
        const std::size_t w = tables.edge[p].head;
        candidates(b, w) = --waiting(b, w) == 0;
    }
    for (auto k = static_cast<std::size_t>(affinity.ptr[v]); k < static_cast<std::size_t>(affinity.ptr[v + 1]); ++k) {
        const auto sum = near_of(b, d, static_cast<std::size_t>(affinity.op[k]));
        for (std::size_t hop = 0; hop < HOPS; ++hop) sum[hop] += affinity.share(k, hop);
    }
}

void Episodes::see(std::size_t b, std::size_t v, double unit, Grid<double> made, const Seen& seen, std::size_t row) const {
    features(b, v, made);
    const auto allowed = seen.allowed.row(row);
    const auto inputs = seen.inputs_at(row);
    bool room = false;
    const auto able = [&](std::size_t d) { return std::isfinite(tables.compute(v, d)); };
    for (std::size_t d = 0; d < allowed.size(); ++d) {
        allowed[d] = able(d) && used(b, d) + tables.op[v].param_bytes <= tables.memory[d];
        room = room || allowed[d];
        for (std::size_t i = 0; i < DEVICE_FEATURES; ++i) inputs(d, i) = static_cast<float>(made(d, i) / unit);
        inputs(d, DEVICE_FEATURES) = able(d) ? static_cast<float>(tables.compute(v, d) / unit) : 0.0f;
        const auto shares = near_of(b, d, v);
        std::copy(shares.begin(), shares.end(), inputs.row(d).begin() + DEVICE_FEATURES + 1);
    }
    if (room) return;
    for (std::size_t d = 0; d < allowed.size(); ++d) allowed[d] = able(d);
}

namespace {

/// Draw an allowed answer, by the Gumbel-max trick, or take the likeliest, the first of equals; -1 if none is allowed.
std::int64_t choose(Span<const float> logits, Span<const Flag> allowed, const Manner& manner, SplitMix& random) {
    const bool any_of = manner.explore > 0 && random.uniform() < manner.explore;
    std::int64_t best = -1;
    double most = 0.0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (!allowed[i]) continue;
        double score = any_of ? 0.0 : static_cast<double>(logits[i]);
        if (any_of || manner.draw) score -= std::log(-std::log(random.uniform() + 1e-300) + 1e-300);
        if (best < 0 || score > most) {
            best = static_cast<std::int64_t>(i);
            most = score;
        }
    }
    return best;
}

/// The candidate with the longest path to an exit, the first of equals.
std::int64_t most_urgent(Span<const Flag> candidates, Span<const double> rank) {
    std::int64_t v = -1;
    for (std::size_t u = 0; u < rank.size(); ++u) {
        if (candidates[u] && (v < 0 || rank[u] > rank[v])) v = static_cast<std::int64_t>(u);
    }
    return v;
}

/// The allowed device where an op can start first, the first of equals.
std::int64_t earliest(Grid<const double> features, Span<const Flag> allowed) {
    std::int64_t d = -1;
    for (std::size_t k = 0; k < allowed.size(); ++k) {
        if (allowed[k] && (d < 0 || features(k, EARLIEST_START) < features(d, EARLIEST_START)))
            d = static_cast<std::int64_t>(k);
    }
    return d;
}

/// PLC's logits of the devices for an op: `place` of the network. `inputs`: [D, DEVICE_INPUTS]; `node`: [W]; `on`: [D, W].
PLACEIT_AVX2 void device_logits(const Policy& policy, Grid<const float> inputs, Span<const float> node, Grid<const float> on,
                                Span<float> hidden, Span<float> out, Span<float> logits) {
    const std::size_t width = policy.bias.size();
    const auto leaky = [](float x) { return x > 0 ? x : SLOPE * x; };
    for (std::size_t d = 0; d < logits.size(); ++d) {
        std::copy(policy.bias.begin(), policy.bias.end(), hidden.begin());
        for (std::size_t j = 0; j < width; ++j) out[j] = node[j] + on(d, j);
        add_product<float>(hidden, inputs.row(d), policy.into.data());
        std::transform(hidden.begin(), hidden.end(), hidden.begin(), leaky);
        add_product<float>(out, hidden, policy.onward.data());
        logits[d] = policy.last[width];
        for (std::size_t j = 0; j < width; ++j) logits[d] += policy.last[j] * leaky(out[j]);
    }
}

}  // namespace

void play(std::size_t first, std::size_t last, const Episodes& episodes, const Decisions& record, const Policy& policy,
          const Manner& manner, Grid<const std::int32_t> kept, Span<const double> rank, double unit,
          Span<std::uint64_t> random) {
    const Tables& tables = episodes.tables;
    const std::size_t ops = episodes.ops(), devices = episodes.devices(), width = policy.bias.size();
    std::vector<float> logits(devices), hidden(width), out(width);
    Matrix<double> features(devices, DEVICE_FEATURES);
    for (std::size_t b = 0; b < episodes.count(); ++b) {
        SplitMix generator(random[b]);
        const std::size_t n = policy.select.rows() > 1 ? b : 0;
        const Grid<float> on(policy.on.row(b * devices).data(), devices, width);
        const auto candidates = episodes.candidates.row(b);
        for (std::size_t t = first; t < last; ++t) {
            const auto chosen =
                manner.select ? choose(policy.select.row(n), candidates, manner, generator) : most_urgent(candidates, rank);
            if (chosen < 0 || !episodes.is_ready(b, static_cast<std::size_t>(chosen))) {
                throw std::invalid_argument("'candidates' of episode " + std::to_string(b) +
                                            " holds no op that can be placed.");
            }
            const auto v = static_cast<std::size_t>(chosen);
            std::int64_t d = kept(b, v);
            if (d < 0) {
                const std::size_t row = b * ops + t;
                episodes.see(b, v, unit, features, record.seen, row);
                const auto allowed = record.seen.allowed.row(row);
                if (manner.place) {
                    device_logits(policy, record.seen.inputs_at(row), policy.node.row(n * ops + v), on, hidden, out, logits);
                    d = choose(logits, allowed, manner, generator);
                } else {
                    d = earliest(features, allowed);
                }
                record.decided(b, t) = true;
            }
            if (d < 0) throw std::invalid_argument("'tables' has no device that can run op " + std::to_string(v) + ".");
            episodes.place(b, v, static_cast<std::size_t>(d));
            for (std::size_t j = 0; j < width; ++j) on(static_cast<std::size_t>(d), j) += policy.placed(n * ops + v, j);
            record.order(b, t) = chosen;
            record.at(b, v) = static_cast<std::int64_t>(t);
            record.chosen(b, v) = d;
            for (std::size_t p = tables.op[v].first; p < tables.op[v + 1].first; ++p) {
                const std::size_t w = tables.edge[p].head;
                if (candidates[w]) record.ready(b, w) = static_cast<std::int64_t>(t) + 1;
            }
        }
        random[b] = generator.state();
    }
}

}  // namespace placeit
