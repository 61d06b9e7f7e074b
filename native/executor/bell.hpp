// A counter of the kernel (eventfd) that a thread polls while others work.
#pragma once

namespace placeit {

/// A counter that is closed when its last owner releases it: a late ring never reaches a descriptor that is another file by
/// then.
class Bell {
public:
    Bell();  // throws std::system_error if the process may not have one more descriptor
    ~Bell();
    Bell(const Bell&) = delete;
    Bell& operator=(const Bell&) = delete;

    /// Readable once the bell has been rung.
    int descriptor() const { return descriptor_; }
    void ring() const noexcept;

private:
    int descriptor_;
};

}  // namespace placeit
