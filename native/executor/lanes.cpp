#include "executor/lanes.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "executor/clock.hpp"

namespace placeit {

namespace {

/// Events of a run that nobody has asked for: requests that have failed and ended, why it was stopped, and what broke.
constexpr std::size_t most_events(Index slots) {
    return 2 * at(slots) + 3;
}

void check(bool possible) {
    if (!possible) throw std::logic_error("the rules were told what cannot have happened, or a device is lost");
}

}  // namespace

Lanes::Lanes(std::shared_ptr<Machine> rules, Span<const double> slowdown)
    : rules_(std::move(rules)),
      slots_(rules_->slots()),
      steps_(at(slots_) * at(rules_->nodes())),
      lanes_(slowdown.size()),
      todo_(steps_.size() + at(slots_) + 1),
      failed_(at(slots_)) {
    for (std::size_t k = 0; k < lanes_.size(); ++k) lanes_[k].slowdown = slowdown[k];
    first_.reserve(at(slots_));
    events_.reserve(most_events(slots_));
}

void Lanes::grow(Index slots) {
    const Lock lock(mutex_);
    if (slots <= slots_) return;
    if (slots > rules_->slots()) rules_->grow(slots);
    steps_.resize(at(slots) * at(rules_->nodes()));
    todo_.resize(steps_.size() + at(slots) + 1);
    failed_.resize(at(slots));
    first_.reserve(at(slots));
    events_.reserve(most_events(slots));
    slots_ = slots;
}

void Lanes::set(Index node, const Step& step) {
    const Lock lock(mutex_);
    check_idle(node / rules_->nodes());
    steps_[at(node)] = step;
}

void Lanes::prepare(Span<const Index> slots, std::int64_t waiting, std::shared_ptr<Bell> bell, double deadline) {
    const Lock lock(mutex_);
    check_idle(-1);
    first_.assign(slots.begin(), slots.end());
    events_.clear();
    for (Lane& lane : lanes_) {
        lane.free = 0.0;
        lane.current = lane.first = lane.last = -1;
        lane.called = false;
    }
    bell_ = std::move(bell);
    admitting_ = bell_ != nullptr;
    left_ = static_cast<std::int64_t>(slots.size()) + admitting_;
    waiting_ = waiting;
    deadline_ = deadline;
    begin_ = end_ = 0.0;
    ring_ = begun_ = stopped_ = over_ = false;
}

void Lanes::work(Index k) {
    Lane& lane = lanes_[at(k)];
    Lock lock(mutex_);
    ++arrived_;
    try {
        run_all(lock, lane);
    } catch (const std::exception& error) {  // no memory, or rules that contradict what has happened
        if (!lock.owns_lock()) lock.lock();
        break_down(error.what());
    }
    lane.current = -1;
    --arrived_;
    let_go(lock);
}

void Lanes::run_all(Lock& lock, Lane& lane) {
    check_deadline();
    if (arrived_ == lanes_.size() && !stopped_ && !begun_) {
        begun_ = true;
        begin_ = now();
        for (const Index slot : first_) {
            begin_request(slot);
            carry_out(begin_);
        }
    }
    while (true) {
        if (lane.first >= 0 && !over_) {
            run_next(lock, lane);
        } else if (over()) {
            return;
        } else {
            let_go(lock);
            lock.lock();
            wait(lock, lane, never, [&] { return lane.first >= 0 || over(); });
        }
    }
}

void Lanes::run_next(Lock& lock, Lane& lane) {
    const Index node = lane.first;
    const Step step = steps_[at(node)];  // there may be more of them meanwhile
    lane.current = node;
    lane.first = step.next;
    const double asked = rules_->node(node).start;
    const auto is_stopped = [&] { return stopped_; };
    let_go(lock);
    int status = 0;
    double start, finish;
    if (step.entry.function) {
        start = now();
        status = step.entry.function(step.entry.argument);
        finish = now();
        lock.lock();
        if (lane.slowdown > 1.0) {
            wait(lock, lane, start + (finish - start) * lane.slowdown, is_stopped);
            finish = now();
        }
    } else {  // by when it was asked for: waking this thread is part of the time, not on top of it
        start = std::max(asked, lane.free);
        finish = lane.free = start + step.seconds;
        lock.lock();
        wait(lock, lane, finish, is_stopped);
    }
    if (over_) return;  // as the run has broken down meanwhile
    check_deadline();
    lane.current = -1;
    rules_->node(node).start = start;
    rules_->node(node).finish = finish;
    if (status != 0) {
        const Failed failed{node, static_cast<Index>(&lane - lanes_.data()), status, finish};
        if (bell_) {
            drop(node / rules_->nodes(), failed);
        } else {
            end_with(failed, finish);
        }
    }
    finished(node);
    carry_out(finish);
}

/// Wait at the bell of a lane for a condition or a time; stop the run if its deadline is over before that.
template <class Condition>
void Lanes::wait(Lock& lock, Lane& lane, double until, Condition condition) {
    while (!condition()) {
        const double time = stopped_ ? until : std::min(until, deadline_);
        if (time == never) {
            lane.bell.wait(lock);
        } else if (lane.bell.wait_until(lock, moment(time)) == std::cv_status::timeout) {
            if (time == until) return;
            check_deadline();
            let_go(lock);
            lock.lock();
        }
    }
}

/// Give the mutex back, and then wake whom there is something for: who is woken must not find the mutex taken.
void Lanes::let_go(Lock& lock) noexcept {
    std::shared_ptr<Bell> bell;
    if (std::exchange(ring_, false)) bell = over_ ? std::move(bell_) : bell_;
    lock.unlock();
    for (Lane& lane : lanes_) {
        if (lane.called.load(std::memory_order_relaxed) && lane.called.exchange(false)) lane.bell.notify_one();
    }
    if (bell) bell->ring();
}

void Lanes::admit(Index slot) {
    Lock lock(mutex_);
    if (!stopped_ && admitting_) {
        ++left_;
        try {
            if (begun_) {
                begin_request(slot);
                carry_out(now());
            } else {
                first_.push_back(slot);
            }
        } catch (const std::exception& error) {
            break_down(error.what());
        }
    }
    let_go(lock);
}

void Lanes::admit_no_more() {
    Lock lock(mutex_);
    if (std::exchange(admitting_, false)) one_less(now());
    let_go(lock);
}

void Lanes::stop() {
    Lock lock(mutex_);
    try {
        const double time = now();
        end_with(Cancelled{time}, time);
    } catch (const std::exception& error) {
        break_down(error.what());
    }
    let_go(lock);
}

bool Lanes::begun() const {
    const Lock lock(mutex_);
    return begun_;
}

bool Lanes::stopped() const {
    const Lock lock(mutex_);
    return stopped_;
}

double Lanes::begin() const {
    const Lock lock(mutex_);
    return begin_;
}

double Lanes::end() const {
    const Lock lock(mutex_);
    return end_;
}

std::vector<Event> Lanes::events() {
    std::vector<Event> found;
    found.reserve(most_events(slots_));
    const Lock lock(mutex_);
    found.swap(events_);
    return found;
}

std::vector<Index> Lanes::running() const {
    const Lock lock(mutex_);
    return on_lanes();
}

std::vector<Ran> Lanes::ran(Index slot) const {
    std::vector<Ran> found;
    {
        const Lock lock(mutex_);
        const Index base = slot * rules_->nodes();
        for (Index n = base; n < base + rules_->nodes(); ++n) {
            const Node& node = rules_->node(n);
            if (begun_ && steps_[at(n)].lane >= 0 && node.phase == Phase::done && node.start >= begin_) {
                found.push_back({n, node.start, node.finish});
            }
        }
    }
    std::stable_sort(found.begin(), found.end(), [](const Ran& a, const Ran& b) { return a.start < b.start; });
    return found;
}

// -- with the mutex --------------------------------------------------------------------------------------------------------

/// Throw if lanes run, or if they run a slot; -1 stands for any.
void Lanes::check_idle(Index slot) const {
    if (arrived_ != 0 && (slot < 0 || rules_->request(slot).active)) {
        throw std::logic_error("Lanes cannot be changed while they run.");
    }
}

std::vector<Index> Lanes::on_lanes() const {
    std::vector<Index> found;
    for (const Lane& lane : lanes_) {
        if (lane.current >= 0) found.push_back(lane.current);
        for (Index n = lane.first; n >= 0; n = steps_[at(n)].next) found.push_back(n);
    }
    std::sort(found.begin(), found.end());
    return found;
}

/// Stop the run if its deadline is over.
void Lanes::check_deadline() {
    if (stopped_ || deadline_ == never) return;
    const double time = now();
    if (time >= deadline_) end_with(Late{deadline_, on_lanes()}, time);
}

void Lanes::begin_request(Index slot) {
    failed_[at(slot)] = false;
    check(rules_->begin(slot));
}

void Lanes::finished(Index node) {
    const bool op = at(node % rules_->nodes()) < rules_->place().size();
    check(op ? rules_->op_finished(node) : rules_->transfer_finished(node));
}

/// Do what the rules have just told, and what they tell of what ends at once.
void Lanes::carry_out(double time) {
    std::size_t first = 0, last = 0;
    const auto add = [&] {
        for (const Index i : rules_->told()) todo_[last++ % todo_.size()] = i;
    };
    add();
    while (first != last) {
        const Index n = todo_[first++ % todo_.size()];
        check(n < nodes() && n >= -slots_);
        if (n >= 0 && steps_[at(n)].lane >= 0) {
            enqueue(n, time);
        } else if (n >= 0) {
            finished(n);
            add();
        } else if (waiting_ > 0) {
            --waiting_;
            begin_request(-1 - n);
            add();
        } else {
            if (bell_ && !stopped_) events_.push_back(Ended{-1 - n, time});
            one_less(time);
        }
    }
}

void Lanes::enqueue(Index node, double time) {
    Step& step = steps_[at(node)];
    Lane& lane = lanes_[at(step.lane)];
    step.next = -1;
    rules_->node(node).start = time;  // until it is known
    (lane.first < 0 ? lane.first : steps_[at(lane.last)].next) = node;
    lane.last = node;
    lane.called = true;
}

/// Have nothing more started: drop what has not been, and let no other request in.
void Lanes::end_with(Event why, double time) {
    if (stopped_ || over_) return;
    stopped_ = true;
    waiting_ = 0;
    ring_ = bell_ != nullptr;
    call_all();
    events_.push_back(std::move(why));
    if (!begun_) return;
    for (Index slot = 0; slot < slots_; ++slot) {
        rules_->abort(slot);
        carry_out(time);
    }
    if (std::exchange(admitting_, false)) one_less(time);
}

/// Have nothing more of a request started, as an entry of it has failed.
void Lanes::drop(Index slot, const Failed& why) {
    if (std::exchange(failed_[at(slot)], true) || stopped_) return;
    events_.emplace_back(std::in_place_type<Failed>, why);
    rules_->abort(slot);
    carry_out(why.at);
}

/// Have all lanes leave, whatever they run, as the rules do not say any more what that means.
void Lanes::break_down(const char* why) noexcept {
    stopped_ = over_ = true;
    admitting_ = false;
    ring_ = bell_ != nullptr;
    end_ = now();
    call_all();
    try {
        events_.push_back(Broken{why});
    } catch (const std::exception&) {
        events_.push_back(Broken{"out of memory"});  // short enough to need none
    }
}

/// A request has ended, or no other will come.
void Lanes::one_less(double time) {
    ring_ = bell_ != nullptr;
    if (--left_ > 0) return;
    over_ = true;
    end_ = time;
    call_all();
}

void Lanes::call_all() noexcept {
    for (Lane& lane : lanes_) lane.called = true;
}

}  // namespace placeit
