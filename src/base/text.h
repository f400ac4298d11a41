#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::base {

// Numbers as people read them: three significant digits, no false precision.
std::string human_bytes(int64_t bytes);                     // "512 B", "1.50 GiB"
std::string human_count(double count);                      // "950", "12.7M", "1.20B"
std::string human_duration(std::chrono::nanoseconds span);  // "0.4 ms", "12.3 s", "1m 20s", "2h 05m", "3d 04h"

// A number with its noun: "1 document", "2 documents".
std::string plural(int64_t count, const std::string& noun);

// The length in bytes of the character at `at` if it is well-formed UTF-8 (Unicode 15, table 3-7), else 0.
size_t utf8_length(std::string_view text, size_t at = 0);

// The text with every ill-formed part replaced by U+FFFD: one for each maximal part of a character, as Python's errors="replace" does.
std::string valid_utf8(std::string_view text);

}  // namespace cairn::base
