// A lane: the thread of a device or a link, which runs one thing at a time: of what waits, the first of the lowest priority
// number.
//
// It lives as long as its device and serves all executors. The thread is a Python thread that has released the interpreter's
// lock; work that is written in Python takes the lock for as long as it runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "executor/event.hpp"

namespace placeit {

/// Something that a lane runs once.
class Work {
public:
    virtual void run() = 0;   // an exception ends the thread
    virtual void drop() = 0;  // it will not run
    Work* next = nullptr;
    int priority = 0;  // set before it is added

protected:
    ~Work() = default;
};

class Lane {
public:
    Lane() = default;
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    /// Queue work. Returns whether the lane sleeps, so that `wake` has to be called.
    bool add(Work& work);
    void wake() { event_.raise(); }

    /// Run queued work, until the lane is closed and nothing is left. To be called by its thread.
    void work();
    /// Have `work` return once nothing is queued.
    void close();

    /// Take the lane for the calling thread, if nothing runs or waits there; or if nothing runs, and some work is the first
    /// that waits, which the caller then has to run. `release` gives the lane back.
    bool hold();
    bool hold(Work& work);
    void release();

    bool ended() const { return ended_; }  // its thread is gone: queued work will not run
    double spun() const { return spun_; }  // seconds that its thread has spun

    std::atomic<std::uint64_t> begun{0};  // pieces of work that have begun: while it stays the same, one of them may hang
    std::atomic<double> lends{0.0};       // the longest segment, in seconds, that a caller may run in its place
    std::atomic<double> spins{0.0};       // seconds that its thread waits awake before it sleeps
    double free = 0.0;                    // time until which a link is taken; for work that runs there

private:
    void drop();

    mutable std::mutex mutex_;
    Work *first_ = nullptr, *last_ = nullptr;
    bool busy_ = false, asleep_ = false, closing_ = false;
    std::atomic<bool> ended_{false};
    std::atomic<double> spun_{0.0};
    double spins_from_ = 0.0;  // no spinning before this time, as something else has wanted the core
    Event event_;
};

/// Counts the thread that it is on as one that needs a core, while it exists.
class Active {
public:
    Active();
    ~Active();
    Active(const Active&) = delete;
    Active& operator=(const Active&) = delete;
};

/// Wait awake, for some seconds at most, until an event is raised; not while threads of this process need all cores.
/// Returns the seconds that it took, below 0 if something else has wanted the core.
double wait_awake(const Event& event, std::uint32_t seen, double seconds);

}  // namespace placeit
