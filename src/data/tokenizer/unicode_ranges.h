// Which characters beyond ASCII are letters, numbers or space: Unicode's own lists, as ranges.
#pragma once
#include <cstdint>
#include <span>

namespace cairn::data {

struct UnicodeRange {
  uint32_t first, last;
  uint8_t kinds;  // bits of Kind (characters.h)
};

// In rising order; what is in none of them has no kind.
std::span<const UnicodeRange> unicode_ranges();

}  // namespace cairn::data
