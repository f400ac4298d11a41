// GPT-2's byte-to-unicode table: each byte is written as one printable character, so that a JSON vocabulary can hold any bytes.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace cairn::data {

// Raw bytes to characters (UTF-8): " a" becomes "Ġa".
std::string bytes_to_unicode(std::string_view bytes);

// Characters (UTF-8) to raw bytes; nothing if some character is not in the table.
std::optional<std::string> unicode_to_bytes(std::string_view text);

}  // namespace cairn::data
