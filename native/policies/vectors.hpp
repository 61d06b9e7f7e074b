// Sums of rows for the networks of policies, for processors with and without AVX2.
//
// No sum is reordered: results are equal on both.
#pragma once

#include <cstddef>

#include "rules/span.hpp"

// Compile a function twice and choose when the library is loaded. Sanitizers are not ready by then.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PLACEIT_AVX2 __attribute__((target_clones("avx2", "default")))
#else
#define PLACEIT_AVX2
#endif
// A function that is compiled with the one that calls it, for its processor.
#define PLACEIT_INLINE inline __attribute__((always_inline))

namespace placeit {

/// Adds to N numbers, kept in registers, a factor times as many of each row, the rows in turn.
template <std::size_t N, class T>
PLACEIT_INLINE void add_columns(T* __restrict sum, Span<const T> factors, const T* __restrict row, std::size_t columns) {
    T total[N];
    for (std::size_t j = 0; j < N; ++j) total[j] = sum[j];
    for (const T factor : factors) {
        for (std::size_t j = 0; j < N; ++j) total[j] += factor * row[j];
        row += columns;
    }
    for (std::size_t j = 0; j < N; ++j) sum[j] = total[j];
}

/// Adds `factors`, [R], times `rows`, [R, C], to `sum`, [C], which shares no memory with them.
template <class T>
PLACEIT_INLINE void add_product(Span<T> sum, Span<const T> factors, const T* rows) {
    const std::size_t columns = sum.size();
    std::size_t j = 0;
    for (; j + 32 <= columns; j += 32) add_columns<32>(sum.data() + j, factors, rows + j, columns);
    for (; j + 16 <= columns; j += 16) add_columns<16>(sum.data() + j, factors, rows + j, columns);
    for (; j + 4 <= columns; j += 4) add_columns<4>(sum.data() + j, factors, rows + j, columns);
    for (; j < columns; ++j) add_columns<1>(sum.data() + j, factors, rows + j, columns);
}

}  // namespace placeit
