// Makes any text safe for an HTML page.
#pragma once
#include <string>
#include <string_view>

namespace cairn::train {

// Escapes HTML markup, for elements and quoted attributes. Drops control characters other than tab and newline. Replaces bytes that are not
// UTF-8 by U+FFFD, because a byte-level model writes such bytes.
std::string html_escaped(std::string_view text);

}  // namespace cairn::train
