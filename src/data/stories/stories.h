// The built-in text: little stories made by a seeded grammar, so that every checkout has something to learn.
#pragma once
#include <cstdint>
#include <string>

namespace cairn::data {

// Appends story `index`: a paragraph or two of plain ASCII, about 60 to 150 words. It depends on (seed, index) only.
void append_story(uint64_t seed, int64_t index, std::string& text);

// Stories first .. first + count - 1, with a blank line between two of them.
std::string stories(uint64_t seed, int64_t first, int64_t count);

}  // namespace cairn::data
