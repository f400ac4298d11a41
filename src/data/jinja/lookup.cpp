#include "data/jinja/lookup.h"

#include <algorithm>
#include <charconv>

#include "data/jinja/builtins.h"
#include "data/jinja/loop.h"
#include "data/jinja/python_text.h"

namespace cairn::data::jinja {
namespace {

using SharedNamespace = std::shared_ptr<Namespace>;
using SharedLoop = std::shared_ptr<const Loop>;

void refuse_undefined(const Value& value, const std::string& part, TemplateBudget& budget) {
  if (value.is_undefined()) budget.fail("{} is undefined and has no '{}'", value.undefined_name(), part);
}

std::string part_name(const Value& value, const std::string& part) {
  return fmt::format("'{}' of a {}", part.substr(0, 100), type_name(value));
}

std::optional<Value> own_attribute(const Value& value, const std::string& name) {
  if (value.is<SharedNamespace>()) {
    for (const auto& [known, held] : value.as<SharedNamespace>()->attributes)
      if (known == name) return held;
  }
  if (value.is<SharedLoop>()) {
    Value found = loop_attribute(*value.as<SharedLoop>(), name);
    if (!found.is_undefined()) return found;
  }
  if (value.is_list() && value.list().is_group && (name == "grouper" || name == "list")) return value.list().items[name == "list"];
  if (name == "current" && value.is<std::shared_ptr<const Cycler>>()) {
    const Cycler& cycler = *value.as<std::shared_ptr<const Cycler>>();
    return cycler.items[cycler.at];
  }
  if (has_method(value, name)) return Value(std::make_shared<const Method>(Method{value, name}));
  return std::nullopt;
}

std::optional<Value> own_item(const Value& value, const Value& key, TemplateBudget& budget) {
  if (value.is_dict()) {
    budget.step(static_cast<int64_t>(value.dict().entries.size() / 8 + (key.is_text() ? key.text().size() / 32 : 0)));
    const Value* found = key.is_text() ? find(value.dict(), key.text()) : find(value.dict(), key, budget);
    if (found != nullptr) return *found;
    return std::nullopt;
  }
  const bool countable = value.is_text() || (value.is_list() && value.list().has_indices());
  if (!countable || !key.is_integer()) return std::nullopt;
  if (value.is_text()) budget.step(static_cast<int64_t>(value.text().size()) / 8);
  const int64_t count = length(value, budget);
  const int64_t index = key.integer() < 0 ? key.integer() + count : key.integer();
  if (index < 0 || index >= count) return std::nullopt;
  if (value.is_list()) return value.list().items[static_cast<size_t>(index)];
  const std::string_view rest = std::string_view(value.text()).substr(byte_of_character(value.text(), index));
  return Value(std::string(rest.substr(0, byte_of_character(rest, 1))));
}

// Python's slice.indices: the first index, and the one at which it ends.
std::pair<int64_t, int64_t> bounds(const Slice& slice, int64_t count) {
  const int64_t stride = slice.stride.value_or(1);
  const int64_t lowest = stride > 0 ? 0 : -1;
  const int64_t highest = stride > 0 ? count : count - 1;
  const auto bound = [&](std::optional<int64_t> given, int64_t otherwise) {
    if (!given) return otherwise;
    return std::clamp(*given < 0 ? *given + count : *given, lowest, highest);
  };
  return {bound(slice.first, stride > 0 ? lowest : highest), bound(slice.last, stride > 0 ? highest : lowest)};
}

// Which items, in which order.
std::vector<int64_t> indices(const Slice& slice, int64_t count, TemplateBudget& budget) {
  const int64_t stride = slice.stride.value_or(1);
  if (stride == 0) budget.fail("a slice has the step 0");
  const auto [first, last] = bounds(slice, count);
  std::vector<int64_t> taken;
  for (int64_t i = first; stride > 0 ? i < last : i > last;) {
    taken.push_back(i);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  budget.step(static_cast<int64_t>(taken.size()));
  return taken;
}

// Python keeps a part of a range a range. Its bounds fit in 64 bits: there are at most 100,000 numbers, all of them inside the old bounds,
// except for the last bound, which may lie one step further.
Value slice_of_range(const List& list, const Slice& slice, TemplateBudget& budget) {
  const auto [start, stop, step] = list.bounds;
  const int64_t stride = slice.stride.value_or(1);
  if (stride == 0) budget.fail("a slice has the step 0");
  const auto [first, last] = bounds(slice, static_cast<int64_t>(list.items.size()));
  const auto at = [&](int64_t index, int64_t& into) {
    return !__builtin_mul_overflow(index, step, &into) && !__builtin_add_overflow(into, start, &into);
  };
  std::array<int64_t, 3> made{};
  if (!at(first, made[0]) || !at(last, made[1]) || __builtin_mul_overflow(step, stride, &made[2]))
    budget.fail("a part of a range has bounds of more than 64 bits");
  return make_range(made, budget);
}

}  // namespace

Value get_attribute(const Value& value, const std::string& name, TemplateBudget& budget) {
  refuse_undefined(value, name, budget);
  if (auto found = own_attribute(value, name)) return *std::move(found);
  if (value.is_dict()) {
    budget.step(static_cast<int64_t>(value.dict().entries.size()) / 8);
    if (const Value* found = find(value.dict(), name)) return *found;
  }
  return Value::undefined(part_name(value, name));
}

Value get_own_attribute(const Value& value, const std::string& name, TemplateBudget& budget) {
  refuse_undefined(value, name, budget);
  return own_attribute(value, name).value_or(Value::undefined(part_name(value, name)));
}

Value get_item(const Value& value, const Value& key, TemplateBudget& budget) {
  refuse_undefined(value, key.is_text() ? key.text() : "item", budget);
  if (auto found = own_item(value, key, budget)) return *std::move(found);
  if (key.is_text()) {
    if (auto found = own_attribute(value, key.text())) return *std::move(found);
    return Value::undefined(part_name(value, key.text()));
  }
  return Value::undefined(key.is_integer() ? part_name(value, std::to_string(key.integer())) : part_name(value, "item"));
}

Value get_path(const Value& value, const Value& path, TemplateBudget& budget) {
  if (!path.is_text()) return get_item(value, path, budget);
  Value found = value;
  for (const std::string_view part : split_at(path.text(), ".", -1, false)) {
    int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && part[0] != '-' && read.ec == std::errc() && read.ptr == part.data() + part.size();
    found = get_item(found, number ? Value(index) : Value(std::string(part)), budget);
  }
  return found;
}

Value part_or_item(const Value& value, const std::optional<Value>& path, TemplateBudget& budget) {
  return path && !path->is_none() ? get_path(value, *path, budget) : value;
}

Value get_slice(const Value& value, const Slice& slice, TemplateBudget& budget) {
  refuse_undefined(value, "slice", budget);
  if (value.is_text()) {
    const std::string& text = value.text();
    budget.step(static_cast<int64_t>(text.size()) / 8);
    if (slice.stride.value_or(1) == 1) {
      const int64_t count = character_count(text);
      const auto [first, last] = bounds(slice, count);
      if (first >= last) return Value(std::string());
      const size_t begin = byte_of_character(text, first);
      return make_text(text.substr(begin, byte_of_character(std::string_view(text).substr(begin), last - first)), budget);
    }
    budget.bytes(text.size() * sizeof(std::string_view));
    const auto characters = characters_of(value.text());
    std::string made;
    for (const int64_t i : indices(slice, static_cast<int64_t>(characters.size()), budget)) made += characters[static_cast<size_t>(i)];
    return make_text(std::move(made), budget);
  }
  if (!value.is_list() || !value.list().has_indices()) budget.fail("a {} has no slices", type_name(value));
  if (value.list().form == List::Form::range) return slice_of_range(value.list(), slice, budget);
  Values made;
  for (const int64_t i : indices(slice, static_cast<int64_t>(value.list().items.size()), budget))
    made.push_back(value.list().items[static_cast<size_t>(i)]);
  return make_list(std::move(made), budget, value.list().form);
}

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index") return loop.index + 1;
  if (name == "index0") return loop.index;
  if (name == "revindex") return length - loop.index;
  if (name == "revindex0") return length - loop.index - 1;
  if (name == "first") return loop.index == 0;
  if (name == "last") return loop.index + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return static_cast<int64_t>(loop.depth);
  if (name == "depth0") return static_cast<int64_t>(loop.depth - 1);
  if (name == "previtem" && loop.index > 0) return loop.items[static_cast<size_t>(loop.index - 1)];
  if (name == "nextitem" && loop.index + 1 < length) return loop.items[static_cast<size_t>(loop.index + 1)];
  return Value::undefined("loop." + name);
}

}  // namespace cairn::data::jinja
