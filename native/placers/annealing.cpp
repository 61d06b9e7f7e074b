#include "placers/annealing.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "simulator/throughput.hpp"

namespace placeit {
namespace {

// Found on problems of the GiPH generator, on random layered graphs of 8 to 200 ops, and on DOPPLER's published cost graphs,
// where chains of tensors that are expensive to move have to stay together.
constexpr double kCritical = 0.5;  // share of moves that are of an op on the critical path
constexpr double kFollow = 0.4;    // share of moves that take an op to where a neighbour is
constexpr double kTogether = 0.5;  // share of moves that take along neighbours on the op's device
constexpr double kSpread = 0.9;    // share of edges along which such a move spreads
constexpr double kBorder = 0.5;    // share of moves, with a capacity, that shift the border between two devices
constexpr double kHot = 1.0;       // temperature at the start, as a share of an op's mean share of the cost
constexpr double kCold = 0.0002;   // temperature at the end, as a share of the cost

// Many moves at once, found on layered graphs and rows of blocks of 10,000 ops and 8 or 64 devices.
constexpr std::int64_t kFew = 25;       // evaluations an op below which many moves are valued at once
constexpr double kManyCritical = 0.8;   // share of these moves that are of a critical op
constexpr double kEstimated = 0.7;      // share that go where they are estimated to be best
constexpr double kManyFollow = 0.6;     // share of the others that go where a neighbour is
constexpr double kTight = 0.1;          // slack up to which an op is critical, in mean durations of an op
constexpr double kDoubt = 0.1;          // random part of an estimate, in mean durations of an op
constexpr std::size_t kTargets = 16;    // devices that are estimated for an op
constexpr std::size_t kTries = 1000;    // proposals after which there may be no move at all
constexpr std::size_t kExchanges = 64;  // ops that are drawn to make room for a move
constexpr std::size_t kMost = 16;       // ops that move together
constexpr double kWindow = 2.0;         // ops before and after a move that it is judged by, per op that runs at a time
constexpr double kWarm = 0.05;          // temperature at the start, as a share of an op's mean share of the cost

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
      leeway_(tables_),
      random_(seed),
      scale_(scale),
      place_(place.begin(), place.end()),
      best_(place_),
      kind_(place.size()),
      moving_(place.size()),
      used_(tables_.memory.size()),
      later_(place.size() + 1),
      critical_(place.size()) {
    std::map<std::vector<std::int32_t>, std::size_t> known;
    for (std::size_t v = 0; v < place_.size(); ++v) {
        std::vector<std::int32_t> able;
        for (std::int32_t d = 0; d < tables_.devices(); ++d) {
            if (tables_.compute(v, static_cast<std::size_t>(d)) < infinity) able.push_back(d);
        }
        if (able.size() > 1) movable_.push_back(v);
        const auto [set, added] = known.emplace(std::move(able), kinds_.size());
        if (added) kinds_.push_back(set->first);
        kind_[v] = set->second;
    }
    if (movable_.empty()) throw std::invalid_argument("'model' is of a problem in which only one device can run each op.");
    if (!model.capacity) return;
    load_.emplace(tables_);
    turn_.resize(place_.size());
    for (std::size_t i = 0; i < place_.size(); ++i) turn_[tables_.op[i].order] = i;
}

void Annealing::run(std::int64_t first, std::int64_t last, std::int64_t steps) {
    if (first < 0 || last < first || steps < last || steps < 1) {
        throw std::invalid_argument("'first', 'last' and 'steps' must ascend from 0 on, and 'steps' be at least 1.");
    }
    const bool few = !evaluate_.model().capacity && steps / kFew < static_cast<std::int64_t>(movable_.size());
    const double hot = kHot * scale_ / static_cast<double>(place_.size()), cold = kCold * scale_;
    const double cooling = std::pow(std::min(1.0, cold / hot), 1.0 / static_cast<double>(steps));
    double temperature = hot * power(cooling, first);
    std::int64_t step = first;
    if (step == 0 && step < last) {
        const double seconds = load_ ? load_->set(place_) : evaluate_(place_);
        if (seconds < infinity) accept(seconds, true);
        temperature *= cooling;
        ++step;
    }
    if (few && since_ > 0 && current_ < infinity && step < last) {  // many moves are judged by the current schedule
        accept(evaluate_(place_), true);
        ++step;
    }
    while (step < last) {
        if (few && current_ < infinity) {
            const double left = 1.0 - static_cast<double>(step) / static_cast<double>(steps);
            step += many_moves(kWarm * hot * left, last - step);
            continue;
        }
        one_move(temperature);
        temperature *= cooling;
        ++step;
    }
}

/// Draws a number from 0 to `count` - 1.
std::size_t Annealing::draw(std::size_t count) {
    return static_cast<std::size_t>(random_.uniform() * static_cast<double>(count));
}

/// Takes the placement that was valued last as the current one. `renew`: also find the critical ops, which takes as long as
/// valuing a placement.
void Annealing::accept(double seconds, bool renew) {
    if (load_ && (renew || seconds < least_)) seconds = load_->set(place_);  // exact
    current_ = seconds;
    if (renew) {
        since_ = 0;
        if (load_) {
            links_ = static_cast<std::size_t>(busiest_ops(tables_, place_, load_->busy(), critical_));
        } else {
            leeway_.take(evaluate_.simulation(), place_);
            find_critical(0.0);
        }
    }
    if (seconds < least_) {
        least_ = seconds;
        best_ = place_;
    }
}

/// Finds the ops that could not finish later than a number of seconds without making the schedule longer.
void Annealing::find_critical(double slack) {
    links_ = 0;
    for (std::size_t v = 0; v < place_.size(); ++v) {
        if (leeway_.slack(v) <= slack + 1e-9 * current_) critical_[links_++] = static_cast<std::int32_t>(v);
    }
}

/// Moves an op, and perhaps neighbours with it, and takes the move back if the placement gets too bad.
void Annealing::one_move(double temperature) {
    std::size_t v = movable_[draw(movable_.size())];
    if (links_ > 0 && random_.uniform() < kCritical) {
        const auto critical = static_cast<std::size_t>(critical_[draw(links_)]);
        if (able(critical).size() > 1) v = critical;
    }
    moved_.clear();
    back_.clear();
    Move move{0, 1, place_[v], 0, true};
    if (!load_ || random_.uniform() >= kBorder || !shift_border(move, v)) {
        moved_.assign(1, v);
        move = {0, 1, place_[v], target(v), true};
        place_[v] = move.to;
        if (random_.uniform() < kTogether) take_along(move, place_.size());
        moving_[v] = 1;
        exchange(move);
        for (const std::size_t w : moved_) moving_[w] = 0;
    }
    const bool known = load_ && current_ < infinity && back_.empty();
    const double seconds = known ? load_->move(moved_, move.to) : load_ ? load_->set(place_) : evaluate_(place_);
    ++since_;
    // infinite (no room for the weights) is never accepted; log(0) accepts anything finite
    if (seconds < infinity && seconds <= current_ - temperature * std::log(random_.uniform())) {
        accept(seconds, since_ > place_.size() / 64);
    } else {
        put(move, move.from);
        for (const std::size_t w : back_) place_[w] = move.to;
        if (known) load_->undo();
        if (load_ && !known && current_ < infinity) load_->set(place_);
    }
}

/// Moves ops the other way, drawn at random, until the weights on the device that a move goes to fit its memory.
void Annealing::exchange(const Move& move) {
    const double most = tables_.memory[static_cast<std::size_t>(move.to)];
    if (most == infinity) return;
    double bytes = 0.0;
    for (std::size_t w = 0; w < place_.size(); ++w) bytes += place_[w] == move.to ? tables_.op[w].param_bytes : 0.0;
    for (std::size_t tries = 0; bytes > most && tries < kExchanges; ++tries) {
        const std::size_t w = movable_[draw(movable_.size())];
        if (place_[w] != move.to || moving_[w] || tables_.op[w].param_bytes == 0.0 ||
            tables_.compute(w, static_cast<std::size_t>(move.from)) == infinity) {
            continue;
        }
        place_[w] = move.from;
        bytes -= tables_.op[w].param_bytes;
        back_.push_back(w);
    }
}

/// Moves a block of ops, consecutive in the order of the problem, over the border to the device before or behind them; false if
/// there is no such device, or it cannot run them.
bool Annealing::shift_border(Move& move, std::size_t v) {
    const std::size_t count = place_.size();
    const bool behind = random_.uniform() < 0.5;  // else before
    const std::size_t step = behind ? 1 : count - 1, stop = behind ? count - 1 : 0;
    std::size_t i = turn_[v];
    while (i != stop && place_[order(i)] == place_[v]) i = (i + step) % count;
    move.from = place_[v];
    move.to = place_[order(i)];
    if (move.to == move.from) return false;
    const auto most = static_cast<std::size_t>(1.0 / (1.001 - random_.uniform()));
    for (std::size_t taken = 0; taken < most; ++taken) {
        i = (i + count - step) % count;
        const std::size_t w = order(i);
        if (place_[w] != move.from || tables_.compute(w, static_cast<std::size_t>(move.to)) == infinity) break;
        place_[w] = move.to;
        moved_.push_back(w);
        if (i == count - 1 - stop) break;
    }
    move.end = moved_.size();
    return !moved_.empty();
}

/// Does many moves, far apart in the schedule. Takes back moves that made it longer where they are, and the rest if the
/// placement is too bad. Returns the number of evaluations, 1 or 2; if only 1 is `allowed`, it is one move.
int Annealing::many_moves(double temperature, std::int64_t allowed) {
    const double mean = leeway_.width() * current_ / static_cast<double>(place_.size());  // seconds of an op
    const double most = 1.0 + static_cast<double>(place_.size()) / (2.0 * (kWindow * leeway_.width() + 4.0));
    if (at_once_ == 0.0) at_once_ = std::max(1.0, 0.3 * most);
    find_critical(kTight * mean);
    moved_.clear();
    moves_.clear();
    std::fill(used_.begin(), used_.end(), 0.0);
    for (std::size_t v = 0; v < place_.size(); ++v) used_[static_cast<std::size_t>(place_[v])] += tables_.op[v].param_bytes;
    const std::size_t wanted = allowed > 1 ? static_cast<std::size_t>(at_once_) : 1;
    for (std::size_t tries = 0; tries < wanted || (moves_.empty() && tries < kTries); ++tries) propose(mean);
    int evaluations = 1;
    double seconds = evaluate_(place_);
    if (moves_.size() > 1 && seconds < infinity) {
        const std::size_t kept = judge(temperature);
        if (kept == 0) {
            seconds = infinity;
        } else if (kept < moves_.size()) {
            for (const Move& move : moves_) {
                if (!move.kept) put(move, move.from);
            }
            seconds = evaluate_(place_);
            evaluations = 2;
        }
    }
    for (const std::size_t v : moved_) moving_[v] = 0;
    if (seconds < infinity && seconds <= current_ - temperature * std::log(random_.uniform())) {
        accept(seconds, true);
        at_once_ = std::min(most, 1.05 * at_once_);
    } else {
        for (const Move& move : moves_) put(move, move.from);
        at_once_ = std::max({1.0, 0.02 * most, 0.97 * at_once_});
    }
    return evaluations;
}

/// Does one of many moves, if the one that is drawn can be done. `mean`: seconds of an op.
void Annealing::propose(double mean) {
    std::size_t v = movable_[draw(movable_.size())];
    if (links_ > 0 && random_.uniform() < kManyCritical) v = static_cast<std::size_t>(critical_[draw(links_)]);
    if (moving_[v] || able(v).size() < 2) return;
    const bool estimated = random_.uniform() < kEstimated;
    Move move{moved_.size(), moved_.size() + 1, place_[v], place_[v], true};
    if (estimated) {
        move.to = estimated_target(v, mean);
    } else if (random_.uniform() < kManyFollow) {
        move.to = neighbouring_device(v);
    } else {
        move.to = able(v)[draw(able(v).size())];
    }
    if (move.to == move.from || tables_.compute(v, static_cast<std::size_t>(move.to)) == infinity) return;
    moved_.push_back(v);
    moving_[v] = 1;
    place_[v] = move.to;
    if (!estimated && random_.uniform() < kTogether) {
        take_along(move, std::min(kMost, 1 + static_cast<std::size_t>(1.0 / (1.001 - random_.uniform()))));
    }
    if (!fits(move)) {
        put(move, move.from);
        for (std::size_t i = move.first; i < move.end; ++i) moving_[moved_[i]] = 0;
        moved_.resize(move.first);
        return;
    }
    for (std::size_t i = move.first; i < move.end; ++i) {
        used_[static_cast<std::size_t>(move.from)] -= tables_.op[moved_[i]].param_bytes;
        used_[static_cast<std::size_t>(move.to)] += tables_.op[moved_[i]].param_bytes;
    }
    moves_.push_back(move);
}

bool Annealing::fits(const Move& move) const {
    double bytes = used_[static_cast<std::size_t>(move.to)];
    for (std::size_t i = move.first; i < move.end; ++i) bytes += tables_.op[moved_[i]].param_bytes;
    return bytes <= tables_.memory[static_cast<std::size_t>(move.to)];
}

/// Decides, by the schedule that was simulated last, which of many moves to keep, and returns how many.
std::size_t Annealing::judge(double temperature) {
    const auto order = leeway_.order();
    const Simulation& simulation = evaluate_.simulation();
    const std::size_t count = order.size();
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t v = order[i];
        later_[i + 1] = later_[i] + (simulation.finish(static_cast<std::int32_t>(v)) - leeway_.finish(v));
    }
    const auto mean = [this](std::size_t first, std::size_t last) {
        return (later_[last] - later_[first]) / static_cast<double>(last - first);
    };
    const std::size_t window = static_cast<std::size_t>(kWindow * leeway_.width()) + 4;
    double end = 0.0;
    for (std::size_t v = 0; v < count; ++v) end = std::max(end, simulation.finish(static_cast<std::int32_t>(v)));
    std::size_t kept = 0;
    for (Move& move : moves_) {
        const std::size_t turn = leeway_.turn(moved_[move.first]);
        const std::size_t before = turn > window ? turn - window : 0, after = std::min(count, turn + window);
        const double delay = before > 0 ? mean(before > window ? before - window : 0, before) : 0.0;
        const double longer = (after < count ? mean(after, std::min(count, after + window)) : end - leeway_.makespan()) - delay;
        move.kept = longer <= -temperature * std::log(random_.uniform());
        kept += move.kept;
    }
    return kept;
}

/// Visits the consumers of an op, then its producers.
template <class Visit>
void Annealing::each_neighbour(std::size_t v, Visit visit) const {
    for (std::size_t p = tables_.op[v].first; p < tables_.op[v + 1].first; ++p) visit(tables_.edge[p].head);
    for (std::size_t i = tables_.op[v].in_first; i < tables_.op[v + 1].in_first; ++i)
        visit(tables_.edge[tables_.in_edge[i]].tail);
}

/// Draws a neighbour and returns its device; the op's own if it has no neighbours.
std::int32_t Annealing::neighbouring_device(std::size_t v) {
    const std::size_t first = tables_.op[v].first, in_first = tables_.op[v].in_first;
    const std::size_t outputs = tables_.op[v + 1].first - first, inputs = tables_.op[v + 1].in_first - in_first;
    if (outputs + inputs == 0) return place_[v];
    const std::size_t k = draw(outputs + inputs);
    return place_[k < outputs ? tables_.edge[first + k].head : tables_.edge[tables_.in_edge[in_first + k - outputs]].tail];
}

/// Draws another device for an op that has a choice: the device of a neighbour, or any.
std::int32_t Annealing::target(std::size_t v) {
    if (random_.uniform() < kFollow) {
        const std::int32_t device = neighbouring_device(v);
        if (device != place_[v] && tables_.compute(v, static_cast<std::size_t>(device)) < infinity) return device;
    }
    const auto& able = this->able(v);
    const std::int32_t device = able[draw(able.size() - 1)];
    return device == place_[v] ? able.back() : device;
}

/// Returns the device where the longest path through an op is estimated to be shortest, or the op's own. `mean`: seconds of an
/// op. Where there are many devices, some of them are drawn, half of them devices of neighbours.
std::int32_t Annealing::estimated_target(std::size_t v, double mean) {
    const auto& able = this->able(v);
    const std::int32_t here = place_[v];
    const bool all = able.size() <= kTargets;
    double least = infinity;
    std::int32_t best = here;
    for (std::size_t i = 0; i < (all ? able.size() : kTargets); ++i) {
        const std::int32_t device = all ? able[i] : i < kTargets / 2 ? neighbouring_device(v) : able[draw(able.size())];
        const auto d = static_cast<std::size_t>(device);
        if (device == here || tables_.compute(v, d) == infinity) continue;
        const double excess = leeway_.excess(v, d, place_) + kDoubt * mean * random_.uniform();
        if (excess < least) {
            least = excess;
            best = device;
        }
    }
    return least <= -leeway_.slack(v) + 2.0 * kDoubt * mean * random_.uniform() ? best : here;
}

/// Moves most neighbours that the moved op had on its former device after it, and their neighbours, up to a number of ops.
void Annealing::take_along(Move& move, std::size_t limit) {
    for (std::size_t at = move.first; at < moved_.size(); ++at) {
        each_neighbour(moved_[at], [&](std::size_t w) {
            if (moved_.size() - move.first < limit && place_[w] == move.from && !moving_[w] &&
                tables_.compute(w, static_cast<std::size_t>(move.to)) < infinity && random_.uniform() < kSpread) {
                place_[w] = move.to;
                moved_.push_back(w);
                moving_[w] = 1;
            }
        });
    }
    move.end = moved_.size();
}

/// Puts the ops of a move on a device.
void Annealing::put(const Move& move, std::int32_t device) {
    for (std::size_t i = move.first; i < move.end; ++i) place_[moved_[i]] = device;
}

}  // namespace placeit
