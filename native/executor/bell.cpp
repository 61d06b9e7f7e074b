#include "executor/bell.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace placeit {

Bell::Bell() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Bell::~Bell() {
    close(descriptor_);
}

void Bell::ring() const noexcept {
    eventfd_write(descriptor_, 1);
}

}  // namespace placeit
