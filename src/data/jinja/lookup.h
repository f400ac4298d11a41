// Attributes, items and slices of values.
#pragma once
#include <optional>
#include <string>

#include "data/jinja/value.h"

namespace cairn::data::jinja {

// `value.name`: methods take precedence over keys. Undefined where there is neither; refused on an undefined value.
Value get_attribute(const Value& value, const std::string& name, TemplateBudget& budget);
// The same without the keys of a dict, as the filter attr has it.
Value get_own_attribute(const Value& value, const std::string& name, TemplateBudget& budget);
// `value[key]`: keys take precedence over methods.
Value get_item(const Value& value, const Value& key, TemplateBudget& budget);
// The path of map(attribute="a.b") and selectattr: names and numbers separated by dots.
Value get_path(const Value& value, const Value& path, TemplateBudget& budget);
// The same, and the value itself where `path` is not given or none.
Value part_or_item(const Value& value, const std::optional<Value>& path, TemplateBudget& budget);

struct Slice {
  std::optional<int64_t> first;
  std::optional<int64_t> last;
  std::optional<int64_t> stride;
};
Value get_slice(const Value& value, const Slice& slice, TemplateBudget& budget);

}  // namespace cairn::data::jinja
