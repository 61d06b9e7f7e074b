#include "placers/annealing.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "simulator/throughput.hpp"

namespace placeit {
namespace {

// Found on problems of the GiPH generator, on random layered graphs of 8 to 200 ops, and on DOPPLER's published cost graphs,
// where chains of dear tensors have to move as one.
constexpr double kCritical = 0.5;  // share of moves that are of an op on the critical chain
constexpr double kFollow = 0.4;    // share of moves that take an op to where a neighbour is
constexpr double kTogether = 0.5;  // share of moves that take along neighbours on the op's device
constexpr double kSpread = 0.9;    // share of edges along which such a move spreads
constexpr double kHot = 1.0;       // temperature at the start, as a share of an op's mean share of the cost
constexpr double kCold = 0.0002;   // temperature at the end, as a share of the cost

double power(double base, std::int64_t exponent) {
    if (exponent > 0x10000) return std::pow(base, static_cast<double>(exponent));
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1, base *= base) {
        if (exponent & 1) result *= base;
    }
    return result;
}

}  // namespace

Annealing::Annealing(const CostModel& model, Span<const std::int32_t> place, double scale, std::uint64_t seed)
    : tables_(*model.tables),
      evaluate_(model),
      random_(seed),
      scale_(scale),
      place_(place.begin(), place.end()),
      best_(place_),
      able_(place.size()),
      chain_(place.size()),
      start_(place.size()),
      finish_(place.size()) {
    for (std::size_t v = 0; v < place_.size(); ++v) {
        for (std::int32_t d = 0; d < tables_.devices(); ++d) {
            if (tables_.compute(v, static_cast<std::size_t>(d)) < infinity) able_[v].push_back(d);
        }
        if (able_[v].size() > 1) movable_.push_back(v);
    }
    if (movable_.empty()) throw std::invalid_argument("'model' is of a problem in which only one device can run each op.");
}

void Annealing::run(std::int64_t first, std::int64_t last, std::int64_t steps) {
    if (first < 0 || last < first || steps < last || steps < 1) {
        throw std::invalid_argument("'first', 'last' and 'steps' must ascend from 0 on, and 'steps' be at least 1.");
    }
    const auto ops = static_cast<double>(place_.size());
    const double hot = kHot * scale_ / ops, cold = kCold * scale_;
    const double cooling = std::pow(std::min(1.0, cold / hot), 1.0 / static_cast<double>(steps));
    double temperature = hot * power(cooling, first);
    const auto rarely = static_cast<std::int64_t>(place_.size() / 64);  // finding a chain is quadratic
    std::int64_t renewed = 0;
    links_ = 0;
    for (std::int64_t step = first; step < last; ++step, temperature *= cooling) {
        std::size_t v = movable_[draw(movable_.size())];
        if (links_ > 0 && random_.uniform() < kCritical) {
            const auto critical = static_cast<std::size_t>(chain_[draw(links_)]);
            if (able_[critical].size() > 1) v = critical;
        }
        const std::int32_t before = place_[v];
        moved_.assign(1, v);
        if (step > 0) {
            place_[v] = target(v);
            if (random_.uniform() < kTogether) take_along(before);
        }
        const double seconds = evaluate_(place_);
        // infinite (no room for the weights) is never accepted; log(0) accepts anything finite
        if (seconds < infinity && seconds <= current_ - temperature * std::log(random_.uniform())) {
            current_ = seconds;
            if (evaluate_.model().capacity) {
                links_ = static_cast<std::size_t>(busiest_ops(tables_, place_, evaluate_.busy(), chain_));
            } else if (links_ == 0 || step - renewed >= rarely) {
                find_critical_chain();
                renewed = step;
            }
            if (seconds < least_) {
                least_ = seconds;
                best_ = place_;
            }
        } else {
            for (const std::size_t w : moved_) place_[w] = before;
        }
    }
}

/// Draws a number from 0 on, below `count`.
std::size_t Annealing::draw(std::size_t count) {
    return static_cast<std::size_t>(random_.uniform() * static_cast<double>(count));
}

/// Visits the consumers of an op, then its producers.
template <class Visit>
void Annealing::each_neighbour(std::size_t v, Visit visit) const {
    for (std::size_t p = tables_.op[v].first; p < tables_.op[v + 1].first; ++p) visit(tables_.edge[p].head);
    for (std::size_t i = tables_.op[v].in_first; i < tables_.op[v + 1].in_first; ++i)
        visit(tables_.edge[tables_.in_edge[i]].tail);
}

/// Draws another device for an op that has a choice: that of a neighbour, or any.
std::int32_t Annealing::target(std::size_t v) {
    const std::size_t first = tables_.op[v].first, in_first = tables_.op[v].in_first;
    const std::size_t outputs = tables_.op[v + 1].first - first, inputs = tables_.op[v + 1].in_first - in_first;
    if (outputs + inputs > 0 && random_.uniform() < kFollow) {
        const std::size_t k = draw(outputs + inputs);
        const std::size_t neighbour =
            k < outputs ? tables_.edge[first + k].head : tables_.edge[tables_.in_edge[in_first + k - outputs]].tail;
        const std::int32_t device = place_[neighbour];
        if (device != place_[v] && tables_.compute(v, static_cast<std::size_t>(device)) < infinity) return device;
    }
    const auto& able = able_[v];
    const std::int32_t device = able[draw(able.size() - 1)];
    return device == place_[v] ? able.back() : device;
}

/// Moves most neighbours that the op which was moved had on its device `before` after it, and theirs.
void Annealing::take_along(std::int32_t before) {
    const std::int32_t to = place_[moved_[0]];
    for (std::size_t at = 0; at < moved_.size(); ++at) {
        each_neighbour(moved_[at], [&](std::size_t w) {
            if (place_[w] == before && tables_.compute(w, static_cast<std::size_t>(to)) < infinity &&
                random_.uniform() < kSpread) {
                place_[w] = to;
                moved_.push_back(w);
            }
        });
    }
}

/// Finds the ops that the simulated makespan is made of, last first.
///
/// An op follows the one that kept its device busy until it started, or one that conflicts with it, or else the input that
/// arrived last. Contention on links is left out: the chain is a guide, not a bound.
void Annealing::find_critical_chain() {
    const Simulation& simulation = evaluate_.simulation();
    for (std::size_t v = 0; v < place_.size(); ++v) {
        start_[v] = simulation.start(static_cast<std::int32_t>(v));
        finish_[v] = simulation.finish(static_cast<std::int32_t>(v));
    }
    const auto waits_for = [this](std::size_t v, std::size_t u) {
        const auto at = static_cast<std::size_t>(place_[v]), other = static_cast<std::size_t>(place_[u]);
        return (at == other || (!tables_.conflict.empty() && tables_.conflict(other, at))) && start_[u] < start_[v];
    };
    const std::size_t none = place_.size();
    auto v = static_cast<std::size_t>(std::max_element(finish_.begin(), finish_.end()) - finish_.begin());
    for (links_ = 0; v != none && links_ < place_.size();) {
        chain_[links_++] = static_cast<std::int32_t>(v);
        std::size_t before = 0;
        while (before < none && !(finish_[before] == start_[v] && waits_for(v, before))) ++before;
        const bool waits_for_inputs = before == none && start_[v] > 0;
        double latest = -1.0;
        for (std::size_t i = tables_.op[v].in_first; waits_for_inputs && i < tables_.op[v + 1].in_first; ++i) {
            const Edge& edge = tables_.edge[tables_.in_edge[i]];
            const auto from = static_cast<std::size_t>(place_[edge.tail]), to = static_cast<std::size_t>(place_[v]);
            const double arrival = finish_[edge.tail] + (from == to ? 0.0 : tables_.link(from, to).seconds(edge.size));
            if (arrival > latest) {
                latest = arrival;
                before = edge.tail;
            }
        }
        v = before;
    }
}

}  // namespace placeit
