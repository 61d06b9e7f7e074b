#include "executor/lane.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <utility>

#include "executor/clock.hpp"

namespace placeit {

namespace {

constexpr double rest_s = 0.01;  // time without spinning after something else has wanted the core
constexpr int looks = 64;        // looks at an event between two looks at the clock

std::atomic<int> active{0};

int cores() {
    static const int count = [] {
        cpu_set_t set;
        return sched_getaffinity(getpid(), sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;  // of the main thread
    }();
    return count;
}

long preemptions() {
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nivcsw;
}

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Active::Active() {
    ++active;
}

Active::~Active() {
    --active;
}

double wait_awake(const Event& event, std::uint32_t seen, double seconds) {
    if (active >= cores()) return 0.0;
    const Active here;
    const long before = preemptions();
    const double begin = now();
    double time = begin;
    while (event.count() == seen && time - begin < seconds && active <= cores()) {
        for (int i = 0; i < looks && event.count() == seen; ++i) pause();
        time = now();
    }
    return preemptions() == before ? time - begin : begin - time;
}

Lane::~Lane() {
    drop();
}

void Lane::drop() {
    Work* work;
    {
        const std::scoped_lock lock(mutex_);
        ended_ = true;
        work = std::exchange(first_, nullptr);
    }
    while (work) std::exchange(work, work->next)->drop();
}

bool Lane::add(Work& work) {
    std::unique_lock lock(mutex_);
    if (ended_) {
        lock.unlock();
        work.drop();
        return false;
    }
    Work** place = &first_;
    if (first_ && last_->priority <= work.priority) place = &last_->next;
    while (*place && (*place)->priority <= work.priority) place = &(*place)->next;
    work.next = *place;
    *place = &work;
    if (!work.next) last_ = &work;
    return asleep_ && !busy_;
}

void Lane::work() {
    prctl(PR_SET_TIMERSLACK, 1);  // Linux may otherwise wake it 50 us late
    struct Leaving {
        Lane& lane;
        ~Leaving() { lane.drop(); }
    } const leaving{*this};
    std::unique_lock lock(mutex_);
    while (!(closing_ && !first_ && !busy_)) {
        if (first_ && !busy_) {
            Work& work = *first_;
            first_ = work.next;
            busy_ = true;
            ++begun;
            lock.unlock();
            {
                const Active here;
                work.run();
            }
            lock.lock();
            busy_ = false;
            continue;
        }
        const std::uint32_t seen = event_.count();
        asleep_ = true;
        lock.unlock();
        if (spins > 0.0 && now() >= spins_from_) {
            const double took = wait_awake(event_, seen, spins);
            spun_ = spun_ + std::abs(took);
            if (took < 0.0) spins_from_ = now() + rest_s;
        }
        if (event_.count() == seen) event_.wait(seen, std::numeric_limits<double>::infinity());
        lock.lock();
        asleep_ = false;
    }
}

void Lane::close() {
    {
        const std::scoped_lock lock(mutex_);
        closing_ = true;
    }
    wake();
}

bool Lane::hold() {
    const std::scoped_lock lock(mutex_);
    if (busy_ || first_ || closing_ || ended_) return false;
    return busy_ = true;
}

bool Lane::hold(Work& work) {
    const std::scoped_lock lock(mutex_);
    if (busy_ || first_ != &work || ended_) return false;
    first_ = work.next;
    return busy_ = true;
}

void Lane::release() {
    bool waiting;
    {
        const std::scoped_lock lock(mutex_);
        busy_ = false;
        waiting = asleep_ && (first_ || closing_);
    }
    if (waiting) wake();
}

}  // namespace placeit
