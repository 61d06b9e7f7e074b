#include "executor/executor.hpp"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "executor/clock.hpp"

namespace placeit {

namespace {

constexpr double look_s = 0.5;
constexpr std::size_t kept_samples = 1000;

/// Incidents of a run that were not fetched yet: requests that have failed and ended, why it was stopped, and why it broke.
constexpr std::size_t max_incidents(Index slots) {
    return 2 * at(slots) + 3;
}

void check(bool possible) {
    if (!possible) throw std::logic_error("the rules were told what cannot have happened, or a device is lost");
}

/// Whether this thread runs when nothing else does: with the lane of a device in hand, it would keep others waiting.
bool in_background() {
    return sched_getscheduler(0) == SCHED_IDLE;
}

}  // namespace

Executor::Executor(std::shared_ptr<Machine> rules, const std::vector<std::shared_ptr<Lane>>& lanes, Span<const double> slowdown)
    : rules_(std::move(rules)), uses_(lanes.size()), samples_(rules_->place().size()) {
    for (std::size_t k = 0; k < lanes.size(); ++k) {
        uses_[k].lane = lanes[k];
        uses_[k].slowdown = slowdown[k];
    }
    grow(rules_->slots());
}

void Executor::leave() const {
    while (inside_ > 0) std::this_thread::yield();
}

void Executor::grow(Index slots) {
    const Lock lock(mutex_);
    if (slots <= slots_) return;
    if (slots > rules_->slots()) rules_->grow(slots);
    const std::size_t each = at(rules_->nodes());
    tasks_.reserve(at(slots));
    for (Index slot = slots_; slot < slots; ++slot) {
        tasks_.push_back(std::make_unique<Task[]>(each));
        for (std::size_t i = 0; i < each; ++i) {
            tasks_.back()[i].owner = this;
            tasks_.back()[i].node = slot * rules_->nodes() + static_cast<Index>(i);
        }
    }
    todo_.resize(at(slots) * (each + 1) + 1);
    failed_.resize(at(slots));
    relayed_.resize(at(slots));
    relay_next_.reserve(at(slots));
    offered_.resize(at(slots));
    incidents_.reserve(max_incidents(slots));
    slots_ = slots;
}

void Executor::set(Index node, const Step& step) {
    const Lock lock(mutex_);
    check_idle(node / rules_->nodes());
    task(node).step = step;
    task(node).took = 0.0;
}

bool Executor::in_flight(Index slot) const {
    const Lock lock(mutex_);
    return rules_->request(slot).active;
}

Step Executor::step(Index node) const {
    const Lock lock(mutex_);
    return task(node).step;
}

std::uint64_t Executor::serial(Index node) const {
    const Lock lock(mutex_);
    return task(node).serial;
}

Waited Executor::run(Span<const Index> slots, std::int64_t waiting, double deadline, const Look& look) {
    Lock lock(mutex_);
    if (!over_) {
        if (caller_ == std::this_thread::get_id()) return Waited::inside;
        end_with(Cancelled{now()}, now());
        if (const Waited before = wait(lock, deadline, look); before != Waited::over) return before;
    }
    if (now() >= deadline) {
        incidents_.assign(1, Late{});
        return Waited::late;
    }
    prepare(nullptr, now());
    Helper helper;
    if (!in_background()) helper_ = &helper;
    begin_all(slots, waiting);
    helper_ = nullptr;
    help(lock, helper);
    return wait(lock, deadline, look);
}

void Executor::open(std::shared_ptr<Bell> bell, Relay relay) {
    auto kept = relay ? std::make_shared<const Relay>(std::move(relay)) : nullptr;
    const Lock lock(mutex_);
    check_idle(-1);
    prepare(std::move(bell), now());
    relay_ = std::move(kept);
}

void Executor::begin(Span<const Index> slots, std::int64_t waiting, double time) {
    Lock lock(mutex_);
    check_idle(-1);
    prepare(nullptr, time);
    begin_all(slots, waiting);
    if (const Last last = let_go(lock)) last();
}

Waited Executor::wait(double deadline, const Look& look) {
    Lock lock(mutex_);
    return wait(lock, deadline, look);
}

bool Executor::watch(double until, const Look& look) {
    while (true) {
        const std::uint32_t seen = changed_.count();
        const double time = now();
        if (over_ || time >= until) return over_;
        changed_.wait(seen, std::min(until, time + look_s));
        if (!over_) look();
    }
}

bool Executor::inside() const {
    const Lock lock(mutex_);
    return caller_ == std::this_thread::get_id();
}

bool Executor::admit(Index slot, bool relayed) {
    Lock lock(mutex_);
    const bool begins = !stopped_ && admitting_;
    if (begins) {
        ++left_;
        relayed_[at(slot)] = relayed;
        try {
            begin_request(slot);
            told(now());
        } catch (const std::exception& error) {
            break_down(error.what());
        }
    }
    if (const Last last = let_go(lock)) last();
    return begins;
}

void Executor::run_offered(Index slot) {
    if (in_background()) return;
    Lock lock(mutex_);
    Task* const task = offered_[at(slot)];
    if (!task || !rules_->request(slot).active || !rules_->node(task->node).on_its_way() || !lends(*task)) return;
    if (!uses_[at(task->step.lane)].lane->hold(*task)) return;  // its thread is awake
    --inside_;
    Helper helper{task, task->step.lane};
    help(lock, helper);
    if (const Last last = let_go(lock)) last();
}

void Executor::admit_no_more() {
    Lock lock(mutex_);
    if (std::exchange(admitting_, false)) one_less(now());
    if (const Last last = let_go(lock)) last();
}

bool Executor::report(Index node, std::uint64_t serial, double start, double finish, int status) {
    Lock lock(mutex_);
    Task& ended = task(node);
    if (over_ || ended.serial != serial || !ended.step.asynchronous || !rules_->node(node).on_its_way()) return false;
    try {
        node_ended(ended, start, finish, status);
    } catch (const std::exception& error) {
        break_down(error.what());
    }
    if (const Last last = let_go(lock)) last();
    return true;
}

void Executor::stop() {
    Lock lock(mutex_);
    end_with(Cancelled{now()}, now());
    if (const Last last = let_go(lock)) last();
}

double Executor::begun_at() const {
    const Lock lock(mutex_);
    return begin_;
}

double Executor::ended_at() const {
    const Lock lock(mutex_);
    return end_;
}

std::vector<Incident> Executor::incidents() {
    std::vector<Incident> found;
    found.reserve(max_incidents(slots_));
    const Lock lock(mutex_);
    found.swap(incidents_);
    return found;
}

std::vector<Index> Executor::running() const {
    const Lock lock(mutex_);
    return started();
}

std::vector<Ran> Executor::ran(Index slot) const {
    std::vector<Ran> found;
    {
        const Lock lock(mutex_);
        const Index base = slot * rules_->nodes();
        for (Index n = base; n < base + rules_->nodes(); ++n) {
            const Node& node = rules_->node(n);
            const Step& step = task(n).step;
            const bool runs = step.lane >= 0 || step.entry.function;
            if (runs && node.phase == Phase::done && task(n).run_number == runs_) found.push_back({n, node.start, node.finish});
        }
    }
    std::stable_sort(found.begin(), found.end(), [](const Ran& a, const Ran& b) { return a.start < b.start; });
    return found;
}

void Executor::seconds(bool last, Span<double> found) const {
    std::vector<double> sorted;
    const Lock lock(mutex_);
    for (std::size_t v = 0; v < samples_.size(); ++v) {
        const std::deque<double>& of_op = samples_[v];
        found[v] = of_op.empty() ? 0.0 : of_op.back();
        if (last || of_op.empty()) continue;
        sorted.assign(of_op.begin(), of_op.end());
        std::sort(sorted.begin(), sorted.end());
        found[v] = (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
    }
}

void Executor::blend(std::size_t runs, Span<const double> seconds) {
    const Lock lock(mutex_);
    for (std::size_t v = 0; v < samples_.size(); ++v) {
        if (seconds[v] <= 0.0) continue;
        std::deque<double>& of_op = samples_[v];
        of_op.resize(of_op.size() - std::min(runs, of_op.size()));
        of_op.push_back(seconds[v]);
    }
}

bool Executor::when_over(std::function<void()> function) {
    const Lock lock(mutex_);
    if (!over_) when_over_ = std::move(function);
    return !over_;
}

// -- without the mutex -----------------------------------------------------------------------------------------------------

/// Carry out a task of a lane, on its thread.
void Executor::run_here(Task& task) {
    if (task.step.asynchronous) {
        const Entry entry = task.step.entry;
        --inside_;  // the callback for the end keeps the executor until then, and maybe no longer
        entry.function(entry.argument);
        return;
    }
    const Last last = carry_out(task, nullptr);
    --inside_;  // the last use of the executor: a thread that waits may destroy it now
    if (last) last();
}

/// Carry out a node on this thread, and what follows from its end. `helper`: the caller, if this is its thread, which goes on
/// with nodes that it may run itself.
Executor::Last Executor::carry_out(Task& task, Helper* helper) {
    const Step& step = task.step;
    Place* const use = step.lane >= 0 ? &uses_[at(step.lane)] : nullptr;
    int status = 0;
    double start, finish;
    if (helper && use) ++use->lane->begun;
    if (step.asynchronous) {
        step.entry.function(step.entry.argument);
        return {};
    }
    if (step.entry.function) {
        start = now();
        status = step.entry.function(step.entry.argument);
        finish = now();
        if (use && use->slowdown > 1.0) {
            pause(start + (finish - start) * use->slowdown);
            finish = now();
        }
    } else {  // counted from the request: waking this thread is part of the time, not added to it
        start = std::max(task.asked, use->lane->free);
        finish = use->lane->free = start + step.seconds;
        pause(finish);
    }
    Lock lock(mutex_);
    if (!over_) {  // otherwise the run has broken down
        helper_ = helper;
        try {
            node_ended(task, start, finish, status);
        } catch (const std::exception& error) {  // out of memory, or rules that contradict what has happened
            break_down(error.what());
        }
        helper_ = nullptr;
    }
    return let_go(lock);
}

/// Let time pass on a lane, until a moment or until the run is stopped.
void Executor::pause(double until) {
    while (now() < until) {
        const std::uint32_t seen = halted_.count();
        if (stopped_) return;
        halted_.wait(seen, until);
    }
}

// -- with the mutex --------------------------------------------------------------------------------------------------------

/// Give the mutex back, and then wake the threads that have something to do, as they must not find the mutex taken. Then start
/// nodes that have no lane.
Executor::Last Executor::let_go(Lock& lock) {
    std::shared_ptr<Bell> bell;
    if (std::exchange(ring_, false)) bell = over_ ? std::move(bell_) : bell_;
    const bool ended = std::exchange(ended_, false);
    Last last;
    if (over_) last = std::exchange(when_over_, nullptr);
    const auto next_direct = [&] {
        Task* const next = direct_.empty() ? nullptr : direct_.front();
        if (next) direct_.pop_front();
        return next;
    };
    Task* direct = next_direct();
    const std::shared_ptr<const Relay> relay = relay_next_.empty() ? nullptr : relay_;
    const auto next_relayed = [&] {
        const Index slot = relay_next_.empty() ? -1 : relay_next_.back();
        if (slot >= 0) relay_next_.pop_back();
        return slot;
    };
    Index relayed = next_relayed();
    lock.unlock();
    for (Place& use : uses_) {
        if (use.asleep.load(std::memory_order_relaxed) && use.asleep.exchange(false)) use.lane->wake();
    }
    if (bell) bell->ring();
    if (ended) changed_.raise();
    while (relayed >= 0) {
        (*relay)(relayed);
        const Lock again(mutex_);
        relayed = next_relayed();
    }
    while (direct) {
        if (Last other = carry_out(*direct, nullptr)) last = std::move(other);
        const Lock again(mutex_);
        direct = next_direct();
    }
    return last;
}

/// Wait until the run is over, or cannot be waited for.
Waited Executor::wait(Lock& lock, double deadline, const Look& look) {
    struct Waiting {
        Executor& executor;
        Lock& lock;
        explicit Waiting(Executor& of, Lock& held) : executor(of), lock(held) { of.caller_ = std::this_thread::get_id(); }
        ~Waiting() {
            if (!lock.owns_lock()) lock.lock();
            executor.caller_ = {};
        }
    } const waiting{*this, lock};
    try {
        for (bool first = true; !over_; first = false) {
            const double time = now();
            const bool gone = std::any_of(uses_.begin(), uses_.end(), [](const Place& use) { return use.lane->ended(); });
            if (gone || time >= deadline) {
                if (gone) {
                    end_with(Cancelled{time}, time);
                } else {
                    end_with(Late{started()}, time);
                }
                if (const Last last = let_go(lock)) last();
                return gone ? Waited::gone : Waited::late;
            }
            const std::uint32_t seen = changed_.count();
            if (const Last last = let_go(lock)) last();
            if (first && spin_ > 0.0) wait_awake(changed_, seen, spin_);
            if (!first) look();  // after the deadline: another thread may hold the interpreter's lock
            if (changed_.count() == seen) changed_.wait(seen, std::min(deadline, time + look_s));
            lock.lock();
        }
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        end_with(Cancelled{now()}, now());
        if (const Last last = let_go(lock)) last();
        throw;
    }
    return Waited::over;
}

/// Run the node that the caller has taken for itself, and give its lane back.
void Executor::help(Lock& lock, Helper& helper) {
    while (helper.mine) {
        Task& task = *std::exchange(helper.mine, nullptr);
        if (const Last last = let_go(lock)) last();
        if (const Last last = carry_out(task, &helper)) last();
        lock.lock();
    }
    if (helper.held >= 0) uses_[at(helper.held)].lane->release();
}

/// Whether a caller may run a node itself, as far as its lane allows.
bool Executor::lends(const Task& task) const {
    return task.step.lendable && task.took > 0.0 && task.took <= uses_[at(task.step.lane)].lane->lends;
}

/// Throw if a run is under way, or if a slot is in flight; -1 stands for any.
void Executor::check_idle(Index slot) const {
    if (slot < 0 ? !over_ : rules_->request(slot).active) {
        throw std::logic_error("An executor cannot be changed while it runs.");
    }
}

std::vector<Index> Executor::started() const {
    std::vector<Index> found;
    for (Index n = 0; n < nodes(); ++n) {
        if (rules_->request(n / rules_->nodes()).active && rules_->node(n).on_its_way()) found.push_back(n);
    }
    return found;
}

void Executor::prepare(std::shared_ptr<Bell> bell, double time) {
    ++runs_;
    incidents_.clear();
    direct_.clear();
    relay_next_.clear();
    relay_ = nullptr;
    bell_ = std::move(bell);
    admitting_ = bell_ != nullptr;
    left_ = admitting_;
    waiting_ = 0;
    begin_ = time;
    end_ = 0.0;
    ring_ = ended_ = stopped_ = over_ = false;
}

void Executor::begin_all(Span<const Index> slots, std::int64_t waiting) {
    left_ = static_cast<std::int64_t>(slots.size());
    waiting_ = slots.empty() ? 0 : waiting;
    if (slots.empty()) end(begin_);
    try {
        for (const Index slot : slots) {
            begin_request(slot);
            told(begin_);
        }
    } catch (const std::exception& error) {
        break_down(error.what());
    }
}

void Executor::begin_request(Index slot) {
    failed_[at(slot)] = false;
    check(rules_->begin(slot));
}

/// Tell the rules that a node has ended, and start what they answer.
void Executor::node_ended(Task& task, double start, double finish, int status) {
    task.took = finish - start;
    rules_->node(task.node).start = start;
    rules_->node(task.node).finish = finish;
    if (status != 0) {
        const Failed failed{task.node, status, finish};
        if (bell_) {
            drop(task.node / rules_->nodes(), failed);
        } else {
            end_with(failed, finish);
        }
    }
    const std::size_t number = at(task.node % rules_->nodes());
    if (number < samples_.size()) {
        samples_[number].push_back(task.took);
        if (samples_[number].size() > kept_samples) samples_[number].pop_front();
    }
    finished(task.node);
    told(finish);
}

/// Tell the rules that an op or a transfer has ended.
void Executor::finished(Index node) {
    const bool op = at(node % rules_->nodes()) < samples_.size();
    check(op ? rules_->op_finished(node) : rules_->transfer_finished(node));
}

/// Start what the rules have just told, and what they tell about nodes that end at once.
void Executor::told(double time) {
    std::size_t first = 0, last = 0;
    const auto add = [&] {
        for (const Index i : rules_->told()) todo_[last++ % todo_.size()] = i;
    };
    add();
    while (first != last) {
        const Index n = todo_[first++ % todo_.size()];
        check(n < nodes() && n >= -slots_);
        if (n >= 0 && (task(n).step.lane >= 0 || task(n).step.entry.function)) {
            start(n, time);
        } else if (n >= 0) {
            finished(n);
            add();
        } else if (waiting_ > 0) {
            --waiting_;
            begin_request(-1 - n);
            add();
        } else {
            const Index slot = -1 - n;
            if (std::exchange(relayed_[at(slot)], false) && relay_ && !failed_[at(slot)] && !stopped_) {
                relay_next_.push_back(slot);
            } else if (bell_) {
                if (!stopped_) incidents_.push_back(Ended{slot, time});
                ring_ = true;
            }
            one_less(time);
        }
    }
}

/// Have a node carried out: by the caller, if it is the one that decides just now and may run it, else by its lane.
void Executor::start(Index node, double time) {
    Task& task = this->task(node);
    ++task.serial;
    task.run_number = runs_;
    task.asked = time;
    if (task.step.lane < 0) {
        direct_.push_back(&task);
        return;
    }
    Place& use = uses_[at(task.step.lane)];
    if (helper_ && !helper_->mine && lends(task) &&
        (helper_->held == task.step.lane || (helper_->held < 0 && use.lane->hold()))) {
        *helper_ = {&task, task.step.lane};
        return;
    }
    offered_[at(node / rules_->nodes())] = &task;
    ++inside_;
    task.priority = priority_;
    if (use.lane->add(task)) use.asleep = true;
}

/// Have nothing more started: drop nodes that have not started, and let no other request in.
void Executor::end_with(Incident why, double time) {
    if (stopped_ || over_) return;
    stopped_ = true;
    waiting_ = 0;
    ring_ = bell_ != nullptr;
    halted_.raise();
    incidents_.push_back(std::move(why));
    for (Index slot = 0; slot < slots_; ++slot) {
        rules_->abort(slot);
        told(time);
    }
    if (std::exchange(admitting_, false)) one_less(time);
}

/// Have nothing more of a request started, as a node of it has failed.
void Executor::drop(Index slot, const Failed& why) {
    if (std::exchange(failed_[at(slot)], true) || stopped_) return;
    incidents_.emplace_back(std::in_place_type<Failed>, why);
    rules_->abort(slot);
    told(why.at);
}

/// End the run, whatever lanes are running, as the state of the rules is not known any more.
void Executor::break_down(const char* why) noexcept {
    stopped_ = true;
    admitting_ = false;
    ring_ = bell_ != nullptr;
    halted_.raise();
    end(now());
    try {
        incidents_.push_back(Broken{why});
    } catch (const std::exception&) {
        incidents_.push_back(Broken{"out of memory"});  // short enough to need none
    }
}

/// Count the end of a request, or that no other one will come.
void Executor::one_less(double time) {
    if (--left_ > 0) return;
    ring_ = bell_ != nullptr;
    end(time);
}

void Executor::end(double time) noexcept {
    end_ = time < begin_ ? now() : time;  // nodes may report times of a virtual clock
    over_ = ended_ = true;
}

}  // namespace placeit
