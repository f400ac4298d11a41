#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json/scan.h"

namespace cairn::base {

// JSON as a value. Read and write it with the functions here: they are compiled once, where the library's own `parse` and `dump`
// cost every file that calls them a second or more.
using Json = nlohmann::json;                 // an object's keys are sorted
using OrderedJson = nlohmann::ordered_json;  // they keep the order in which they were written

// The value of a text. For invalid JSON the value is_discarded(): it is neither object nor list nor anything else.
Json parse_json(std::string_view text);
OrderedJson parse_ordered_json(std::string_view text);

// The result of parsing a text that may be hostile: the value, or why there is none.
struct GuardedJson {
  Json value;                         // is_discarded() where there is none
  std::optional<int64_t> invalid_at;  // the byte where the text stops being JSON, where one can be named; the first is 1
  bool too_deep = false;              // something lies within more than the allowed number of lists and objects
  std::optional<std::string> repeated_key = std::nullopt;  // one object has this key twice: readers would take either value
  std::string trouble = {};  // any of these, or an exceeded limit, as words for a message: "not JSON at byte 17"; empty: none
};
// The text is scanned (json/scan.h) before anything is built from it, so that hostile depth and size cost next to nothing.
GuardedJson parse_json_guarded(std::string_view text, const JsonLimits& limits);
inline GuardedJson parse_json_guarded(std::string_view text, int depth_max) {
  return parse_json_guarded(text, JsonLimits{.depth = depth_max});
}

// Why a text is not JSON within these limits; empty: it is. Builds nothing.
std::string json_error(std::string_view text, const JsonLimits& limits = {});

// The text of a value for a message, shortened.
std::string shown(const Json& value, size_t characters = 80);

// The text of a value, on one line or indented by two. Bytes that are not UTF-8 become U+FFFD, so that it can always be read back.
std::string compact(const Json& json);
std::string compact(const OrderedJson& json);
std::string pretty(const OrderedJson& json);

}  // namespace cairn::base
