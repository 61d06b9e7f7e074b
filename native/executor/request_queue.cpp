#include "executor/request_queue.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include "executor/clock.hpp"
#include "executor/lane.hpp"

namespace placeit {

namespace {

constexpr double look_s = 0.5;

void copy(const std::vector<Memory>& from, const std::vector<Memory>& to) {
    for (std::size_t i = 0; i < from.size(); ++i) std::memcpy(to[i].at, from[i].at, from[i].bytes);
}

bool alike(const std::vector<Memory>& a, const std::vector<Memory>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](Memory x, Memory y) { return x.bytes == y.bytes; });
}

}  // namespace

Index RequestQueue::add(Executor& executor, std::vector<Tensors> slots, std::shared_ptr<Bell> bell, std::int64_t every) {
    auto made = std::make_unique<Replica>();
    made->executor = &executor;
    made->flying.resize(slots.size());
    for (std::size_t slot = slots.size(); slot-- > 0;) made->free.push_back(static_cast<Index>(slot));
    made->slots = std::move(slots);
    made->bell = std::move(bell);
    made->every = every;
    const Lock lock(mutex_);
    if (every > 0) since_ = 0;
    replicas_.push_back(std::move(made));
    return static_cast<Index>(replicas_.size()) - 1;
}

void RequestQueue::open(Index replica) {
    Lock lock(mutex_);
    Replica& opened = of(replica);
    const std::uint64_t run = ++opened.run;
    lock.unlock();
    opened.executor->open(opened.bell,
                          [self = shared_from_this(), replica, run](Index slot) { self->ended(replica, run, slot); });
    lock.lock();
    opened.open = true;
    dispatch(lock);
}

void RequestQueue::close(Index replica) {
    Lock lock(mutex_);
    Replica& closed = of(replica);
    closed.open = false;
    await_users(lock, closed);
    closed.free.clear();  // reserved slots belong to a run that is over, or is to be
    for (std::size_t slot = closed.slots.size(); slot-- > 0;) {
        if (!closed.flying[slot]) closed.free.push_back(static_cast<Index>(slot));
    }
}

bool RequestQueue::retire(Index replica) {
    const Lock lock(mutex_);
    of(replica).open = false;
    return of(replica).in_flight() == 0 && of(replica).users == 0;
}

void RequestQueue::adopt(Index replica) {
    Lock lock(mutex_);
    of(replica).every = 0;
    dispatch(lock);
}

void RequestQueue::again(Index replica) {
    Lock lock(mutex_);
    Replica& left = of(replica);
    std::vector<One> flown;
    for (Index slot = 0; slot < static_cast<Index>(left.flying.size()); ++slot) {
        One& request = left.flying[at(slot)];
        if (!request) continue;
        flown.push_back(std::move(request));
        request = nullptr;
        left.free.push_back(slot);
    }
    std::sort(flown.begin(), flown.end(), [](const One& a, const One& b) { return a->number > b->number; });
    for (const One& request : flown) {
        --flights_;
        waiting_.push_front(request);
        request->place = waiting_.begin();
        request->deadline = Executor::never;
        request->state = State::waiting;
        ++waiting_count_;
    }
    dispatch(lock);
}

bool RequestQueue::put(const One& request) {
    Lock lock(mutex_);
    if (request->state != State::outside) throw std::invalid_argument("A request is submitted once.");
    if (!replicas_.empty() && !(alike(request->tensors.inputs, of(0).slots.front().inputs) &&
                                alike(request->tensors.outputs, of(0).slots.front().outputs))) {
        throw std::invalid_argument("A request has other inputs and outputs than the model.");
    }
    request->queue = this;
    auto behind = waiting_.end();
    while (behind != waiting_.begin() && (*std::prev(behind))->priority > request->priority) --behind;
    request->place = waiting_.insert(behind, request);
    if (request->deadline < Executor::never) deadlines_.emplace(std::pair(request->deadline, request.get()), request);
    request->state = State::waiting;
    ++waiting_count_;
    dispatch(lock);
    return !deadlines_.empty() && deadlines_.begin()->second == request;
}

bool RequestQueue::cancel(const One& request) {
    const Lock lock(mutex_);
    check_mine(*request);
    if (request->state == State::waiting) {
        take_out(request, State::cancelled);
        ring_for(*request);
    }
    return request->state == State::cancelled;
}

void RequestQueue::watch(Submission& request) {
    const Lock lock(mutex_);
    check_mine(request);
    request.watched = true;
    if (request.over() && !request.acknowledged) ring_for(request);
}

bool RequestQueue::wait(Submission& request, double until, const Look& look) {
    check_mine(request);
    Replica* runs = nullptr;
    Index slot = -1;
    if (request.state == State::flying) {
        const Lock lock(mutex_);
        if (request.state == State::flying && of(request.replica).open) {
            runs = &of(request.replica);
            slot = request.slot;
            ++runs->users;
        }
    }
    double spin = 0.0;
    if (runs) {
        spin = runs->executor->spin();
        runs->executor->run_offered(slot);
        const Lock lock(mutex_);
        --runs->users;
    }
    const std::uint32_t seen = request.done.count();
    for (bool first = true; !request.over() && request.done.count() == seen && now() < until; first = false) {
        if (!first) look();
        if (first && spin > 0.0) wait_awake(request.done, seen, spin);
        if (request.done.count() == seen && !request.over()) request.done.wait(seen, std::min(until, now() + look_s));
    }
    return request.over();
}

std::vector<RequestQueue::One> RequestQueue::over(bool due) {
    const double time = now();
    const Lock lock(mutex_);
    while (!over_.empty() && over_.front()->acknowledged) over_.pop_front();
    std::vector<One> found;
    for (const One& request : over_) {
        if (request->acknowledged || (due && !request->watched && time - request->over_since < look_s)) continue;
        if (due) {
            request->watched = false;
            request->over_since = time;
        }
        found.push_back(request);
    }
    return found;
}

void RequestQueue::acknowledge(const One& request) {
    const Lock lock(mutex_);
    check_mine(*request);
    request->acknowledged = true;
    request->done.raise();
    while (!over_.empty() && over_.front()->acknowledged) over_.pop_front();
}

double RequestQueue::expire() {
    const Lock lock(mutex_);
    const double time = now();
    while (!deadlines_.empty() && deadlines_.begin()->first.first <= time) {
        const One request = deadlines_.begin()->second;
        take_out(request, State::expired);
        request->watched = true;
    }
    return deadlines_.empty() ? Executor::never : deadlines_.begin()->first.first;
}

std::vector<RequestQueue::One> RequestQueue::withdraw() {
    const Lock lock(mutex_);
    std::vector<One> found(waiting_.begin(), waiting_.end());
    for (const One& request : found) take_out(request, State::outside);
    return found;
}

std::vector<RequestQueue::One> RequestQueue::flying() const {
    const Lock lock(mutex_);
    std::vector<One> found;
    for (const auto& replica : replicas_) {
        std::copy_if(replica->flying.begin(), replica->flying.end(), std::back_inserter(found),
                     [](const One& request) { return request != nullptr; });
    }
    return found;
}

RequestQueue::One RequestQueue::in_slot(Index replica, Index slot) const {
    const Lock lock(mutex_);
    return has(replica, slot) ? of(replica).flying[at(slot)] : nullptr;
}

void RequestQueue::drop(Index replica, Index slot) {
    Lock lock(mutex_);
    if (!has(replica, slot)) return;
    Replica& owner = of(replica);
    One& request = owner.flying[at(slot)];
    if (!request) return;
    --flights_;
    request->state = State::outside;
    request->done.raise();
    request = nullptr;
    owner.free.push_back(slot);
    await_users(lock, owner);
    dispatch(lock);
}

Index RequestQueue::reserve(Index replica) {
    const Lock lock(mutex_);
    Replica& owner = of(replica);
    if (owner.free.empty()) return -1;
    const Index slot = owner.free.back();
    owner.free.pop_back();
    return slot;
}

void RequestQueue::release(Index replica, Index slot) {
    Lock lock(mutex_);
    if (!has(replica, slot)) return;
    Replica& owner = of(replica);
    const bool known = std::find(owner.free.begin(), owner.free.end(), slot) != owner.free.end();
    if (!known && !owner.flying[at(slot)]) owner.free.push_back(slot);
    dispatch(lock);
}

std::int64_t RequestQueue::in_flight(Index replica) const {
    const Lock lock(mutex_);
    return of(replica).in_flight();
}

std::int64_t RequestQueue::enter() {
    const Lock lock(mutex_);
    ++others_;
    return ++begun_;
}

void RequestQueue::exit() {
    const Lock lock(mutex_);
    --others_;
}

// -- with the mutex --------------------------------------------------------------------------------------------------------

void RequestQueue::check_mine(const Submission& request) const {
    if (request.queue != this) throw std::invalid_argument("The request was not put into this queue.");
}

/// Returns the replica that takes the next request; -1 if no replica has room.
Index RequestQueue::next() const {
    Index found = -1;
    const bool served =
        std::any_of(replicas_.begin(), replicas_.end(), [](const auto& one) { return one->open && one->every == 0; });
    for (Index i = 0; i < static_cast<Index>(replicas_.size()); ++i) {
        const Replica& replica = of(i);
        if (!replica.open || replica.free.empty()) continue;
        if (replica.every > 0 && served) {
            if (replica.in_flight() == 0 && since_ >= replica.every - 1) return i;
        } else if (found < 0 || replica.in_flight() < of(found).in_flight()) {
            found = i;
        }
    }
    return found;
}

/// Wait for threads that are about to begin or end a request on a replica.
void RequestQueue::await_users(Lock& lock, const Replica& replica) {
    while (replica.users > 0) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
    }
}

/// Have requests begin while there is room, without the mutex for each of them.
void RequestQueue::dispatch(Lock& lock) {
    while (!waiting_.empty()) {
        const One request = waiting_.front();
        if (request->deadline <= now()) {
            take_out(request, State::expired);
            ring_for(*request);
            continue;
        }
        const Index number = next();
        if (number < 0) return;
        Replica& replica = of(number);
        take_out(request, State::flying);
        request->replica = number;
        request->slot = replica.free.back();
        replica.free.pop_back();
        request->number = ++begun_;
        request->alone = flights_ + others_ == 0;
        request->begun = now();
        replica.flying[at(request->slot)] = request;
        since_ = replica.every > 0 ? 0 : since_ + 1;
        ++flights_;
        ++replica.users;
        lock.unlock();
        copy(request->tensors.inputs, replica.slots[at(request->slot)].inputs);
        replica.executor->admit(request->slot, true);  // if its run was stopped, the request waits again once that is over
        lock.lock();
        --replica.users;
    }
}

/// Handle a request that has succeeded. Called by its executor, on the thread that has ended it.
void RequestQueue::ended(Index number, std::uint64_t run, Index slot) {
    Lock lock(mutex_);
    Replica& replica = of(number);
    const One request = replica.flying[at(slot)];
    if (replica.run != run || !request) return;
    ++replica.users;
    lock.unlock();
    copy(replica.slots[at(slot)].outputs, request->tensors.outputs);
    try {
        request->ran = replica.executor->ran(slot);
    } catch (const std::exception&) {
        request->ran.clear();  // out of memory for what ran
    }
    lock.lock();
    --replica.users;
    if (replica.flying[at(slot)] != request) return;  // it was dropped while its outputs were copied
    replica.flying[at(slot)] = nullptr;
    replica.free.push_back(slot);
    --flights_;
    request->alone = request->alone && begun_ == request->number;
    put_over(request, State::ended);
    if (request->watched || tell_all_ || !replica.open) replica.bell->ring();
    dispatch(lock);
}

/// Take a request out of the queue.
void RequestQueue::take_out(const One& request, State state) {
    waiting_.erase(request->place);
    --waiting_count_;
    deadlines_.erase({request->deadline, request.get()});
    room.raise();
    if (state >= State::ended) {
        put_over(request, state);
    } else {
        request->state = state;
        if (state == State::outside) request->done.raise();
    }
}

void RequestQueue::put_over(const One& request, State state) {
    over_.push_back(request);
    request->ended = request->over_since = now();
    request->state = state;
    request->done.raise();
}

/// Call a replica's thread if the end of a request is to be handled at once.
void RequestQueue::ring_for(const Submission& request) {
    if (!request.watched && !tell_all_) return;
    for (const auto& replica : replicas_) replica->bell->ring();
}

}  // namespace placeit
