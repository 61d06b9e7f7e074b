// The random numbers of a numpy.random.Generator.
#pragma once

#include <cstdint>

namespace placeit {

/// The struct that the capsule numpy.random.BitGenerator.capsule points to (bitgen_t in numpy/random/bitgen.h). The caller
/// holds the generator's lock.
struct BitGenerator {
    void* state;
    std::uint64_t (*next_uint64)(void* state);
    std::uint32_t (*next_uint32)(void* state);
    double (*next_double)(void* state);
    std::uint64_t (*next_raw)(void* state);

    /// A number in [0, 1), as Generator.random draws it.
    double uniform() { return next_double(state); }
    /// A number from 0 to count - 1.
    std::int32_t below(std::size_t count) { return static_cast<std::int32_t>(uniform() * static_cast<double>(count)); }
};

}  // namespace placeit
