// A first look at a JSON text that may be hostile, before a tree is made of it: one pass, no memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::base {

// How much a text may ask of whoever reads it.
struct JsonLimits {
  int depth = 64;                   // lists and objects within one another
  int64_t tree_bytes = 256 << 20;   // what its values will take in memory, by a rough estimate from above
  int64_t string_bytes = 16 << 20;  // of one string
};

struct JsonScan {
  bool too_deep = false;
  std::string trouble;  // "nested more than 64 deep, at byte 65"; empty: the text keeps to the limits. It may still be no JSON.
};

// Looks for what the limits forbid, and for what a parser would pass over or stumble on: byte order marks, NUL bytes, strings without an
// end, endless numbers.
JsonScan scan_json(std::string_view text, const JsonLimits& limits);

}  // namespace cairn::base
