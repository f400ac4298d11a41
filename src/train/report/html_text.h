// Text from anywhere made fit to stand in an HTML page.
#pragma once
#include <string>
#include <string_view>

namespace cairn::train {

// Escapes what HTML reads as markup (fit for elements and quoted attributes alike), drops control characters other than tab and newline,
// and puts U+FFFD where the bytes are not UTF-8: a byte-level model writes such text every day.
std::string html_escaped(std::string_view text);

}  // namespace cairn::train
