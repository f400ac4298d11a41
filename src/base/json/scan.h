// A scan of a JSON text that may be hostile, before a tree is built from it: one pass, no allocation.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::base {

// Limits on what a text may make its reader do.
struct JsonLimits {
  int depth = 64;                   // lists and objects within one another
  int64_t tree_bytes = 256 << 20;   // memory of its values, estimated from above
  int64_t string_bytes = 16 << 20;  // of one string
};

struct JsonScan {
  bool too_deep = false;
  std::string trouble;  // "nested more than 64 deep, at byte 65"; empty: within the limits (but perhaps not valid JSON)
};

// Checks the limits, and finds what a parser would ignore or fail on: byte order marks, NUL bytes, unterminated strings, endless numbers.
JsonScan scan_json(std::string_view text, const JsonLimits& limits);

}  // namespace cairn::base
