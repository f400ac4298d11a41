// GPT-2's table that writes each byte as one printable Unicode letter, so that a JSON file can hold any piece of text.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace cairn::data {

// Raw bytes to letters (UTF-8): " a" becomes "Ġa".
std::string bytes_to_unicode(std::string_view bytes);

// Letters (UTF-8) to raw bytes; nothing if some letter is not in the table.
std::optional<std::string> unicode_to_bytes(std::string_view text);

}  // namespace cairn::data
