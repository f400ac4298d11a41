// Text that is not UTF-8: which encoding it seems to have, and the command that converts it.
#pragma once
#include <string>
#include <string_view>

namespace cairn::data {

// The name that iconv has for UTF-16 or UTF-32, by a byte-order mark or by the places of NUL bytes; empty: neither.
std::string wide_encoding(std::string_view head);

// The name that iconv has for the 8-bit encoding of western European text; empty: the bytes are UTF-8, too few, or no such text.
std::string narrow_encoding(std::string_view head);

// Throws bad_input for a file in this encoding, with the command. `key` is the recipe key of the path.
[[noreturn]] void refuse_encoding(const std::string& key, const std::string& path, const std::string& encoding);

}  // namespace cairn::data
