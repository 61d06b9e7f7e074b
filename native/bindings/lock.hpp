// The interpreter's lock, for threads that may outlive the interpreter.
//
// A thread that takes the lock once the interpreter exits is ended inside that call, which aborts the process where frames of
// C++ are below. So such threads, which are daemons, wait for ever: those that wait for a run from `exiting` on, and all others
// from `leaving` on. The thread that exits is the exception.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace placeit {

inline std::atomic<bool> exiting{false}, leaving{false};
inline std::atomic<int> entering{0};        // threads that take the lock, or hold it for C++
inline thread_local bool exits = false;     // whether this thread is the one that exits
inline thread_local bool unlocked = false;  // whether this thread of Python has released the lock here
inline thread_local bool holds = false;     // whether this thread is counted for as long as it holds the lock

/// Counts this thread as one that takes the lock, or has it wait for ever.
inline void enter(const std::atomic<bool>& closed) {
    ++entering;
    if (!closed || exits) return;
    --entering;
    while (true) pause();
}

/// Releases the lock while a thread waits or works; at the end, if `closed`, the thread waits for ever.
class Released {
public:
    explicit Released(const std::atomic<bool>& closed = leaving) : closed_(closed), state_(PyEval_SaveThread()) {
        unlocked = true;
        if (holds) --entering;
    }
    ~Released() {
        enter(closed_);
        unlocked = false;
        PyEval_RestoreThread(state_);
        if (!holds) --entering;
    }
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;

private:
    const std::atomic<bool>& closed_;
    PyThreadState* state_;
};

/// Holds the lock on any thread, which may hold it already.
class Held {
public:
    Held()
        : counted_(unlocked || PyGILState_GetThisThreadState() == nullptr),
          held_(std::exchange(holds, holds || counted_)),
          unlocked_(std::exchange(unlocked, false)) {
        if (counted_) enter(leaving);
        state_ = PyGILState_Ensure();
    }
    ~Held() {
        PyGILState_Release(state_);
        if (counted_) --entering;
        holds = held_;
        unlocked = unlocked_;
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

private:
    bool counted_, held_, unlocked_;
    PyGILState_STATE state_;
};

}  // namespace placeit
