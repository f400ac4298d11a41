// Whether bytes are well-formed UTF-8.
#pragma once
#include <cstddef>
#include <string_view>

namespace cairn::data {

// The offset of the first byte that is not part of a well-formed character; npos: there is none.
size_t first_invalid_utf8(std::string_view text);

}  // namespace cairn::data
