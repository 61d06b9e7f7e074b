// Where an op would finish first if it moved alone.
#pragma once

#include <cstdint>

#include "rules/span.hpp"
#include "rules/tables.hpp"

namespace placeit {

/// Writes the device with room for it on which each of some ops would finish first if moved alone, [K]; its present one if none
/// is earlier. The op is put into the earliest idle gap after its inputs have arrived, in the schedule that is simulated
/// without the op. `place`: [V]; `ops`: [K].
void earliest_finish_devices(const Tables& tables, Span<const std::int32_t> place, Span<const std::int64_t> ops,
                             Span<std::int32_t> devices);

}  // namespace placeit
