// Objects that one caller at a time may use, because they change while they run without the GIL.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>

namespace placeit {

/// An object with a mark that is set while a caller uses it.
template <class T>
struct Exclusive : T {
    using T::T;
    std::atomic<bool> used{false};
};

/// The use of such an object, for as long as this lives: one call of a binding, or all that a longer owner does with it.
/// Throws std::runtime_error, which Python gets as RuntimeError, if another use of the object has not ended.
class Use {
public:
    template <class T>
    Use(Exclusive<T>& object, const char* what) : used_(object.used) {
        if (used_.exchange(true, std::memory_order_acquire)) {
            throw std::runtime_error(std::string(what) + " is running in another thread.");
        }
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { used_.store(false, std::memory_order_release); }

private:
    std::atomic<bool>& used_;
};

}  // namespace placeit
