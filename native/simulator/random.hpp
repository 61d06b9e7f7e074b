// SplitMix64 (Steele, Lea and Flood 2014): the random numbers of searches and of noise.
#pragma once

#include <cstdint>

namespace placeit {

inline std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/// A number in [0, 1) of 64 bits.
inline double unit(std::uint64_t bits) {
    return static_cast<double>(bits >> 11) / 9007199254740992.0;
}

/// The random stream of the `index`-th placement of a batch.
inline std::uint64_t stream_of(std::uint64_t seed, std::uint64_t index) {
    return mix(mix(seed) + index);
}

/// The `item`-th factor of a stream, uniform in [1 - noise, 1 + noise] whatever the order of asking.
inline double factor(double noise, std::uint64_t stream, std::uint64_t item) {
    return 1.0 + noise * (2.0 * unit(mix(stream + (item + 1) * 0x9E3779B97F4A7C15u)) - 1.0);
}

class SplitMix {
public:
    explicit SplitMix(std::uint64_t state) : state_(state) {}
    double uniform() { return unit(mix(state_ += 0x9E3779B97F4A7C15u)); }
    std::uint64_t state() const { return state_; }

private:
    std::uint64_t state_;
};

}  // namespace placeit
