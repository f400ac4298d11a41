// Values as text: str() for {{ }}, repr() inside lists, and JSON in both directions.
#pragma once
#include <optional>
#include <string>

#include "base/json.h"
#include "data/jinja/value.h"

namespace cairn::data::jinja {

// Python's str().
std::string to_text(const Value& value, TemplateBudget& budget);
// Python's repr().
std::string to_repr(const Value& value, TemplateBudget& budget);

// The arguments of json.dumps that the filter tojson accepts.
struct JsonStyle {
  std::optional<std::string> indent = std::nullopt;  // one level of it
  std::string between_items = ", ";
  std::string after_key = ": ";
  bool ascii_only = false;
  bool sort_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style, TemplateBudget& budget);

Value from_json(const base::OrderedJson& json, TemplateBudget& budget);

}  // namespace cairn::data::jinja
