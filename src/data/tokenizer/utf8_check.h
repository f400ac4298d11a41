// Whether bytes are well-formed UTF-8.
#pragma once
#include <cstddef>
#include <string_view>

namespace cairn::data {

// The length in bytes of the character at `at` if it is well-formed UTF-8 (Unicode 15, table 3-7), else 0.
size_t utf8_length(std::string_view text, size_t at);

// The offset of the first byte that is not part of a well-formed character; npos: there is none.
size_t first_invalid_utf8(std::string_view text);

}  // namespace cairn::data
