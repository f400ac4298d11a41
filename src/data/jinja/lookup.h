// Parts of values: attributes, items, slices.
#pragma once
#include <optional>
#include <string>

#include "data/jinja/value.h"

namespace cairn::data::jinja {

// `value.name`: a method before a key. Undefined where there is neither; refused on an undefined value.
Value get_attribute(const Value& value, const std::string& name, TemplateBudget& budget);
// `value[key]`: a key before a method.
Value get_item(const Value& value, const Value& key, TemplateBudget& budget);
// What map(attribute="a.b") and selectattr look up: names and numbers with dots between them.
Value get_path(const Value& value, const Value& path, TemplateBudget& budget);

struct Slice {
  std::optional<int64_t> first;
  std::optional<int64_t> last;
  std::optional<int64_t> stride;
};
Value get_slice(const Value& value, const Slice& slice, TemplateBudget& budget);

}  // namespace cairn::data::jinja
