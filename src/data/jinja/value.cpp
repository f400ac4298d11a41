#include "data/jinja/value.h"

#include <algorithm>

#include "data/jinja/loop.h"
#include "data/jinja/python_text.h"

namespace cairn::data::jinja {
namespace {

// Namespaces count as 0: the evaluator owns them all, and empties them one by one at the end.
int depth_of(const Value& value) {
  if (value.is_list()) return value.list().depth;
  if (value.is_dict()) return value.dict().depth;
  if (value.is<std::shared_ptr<const Cycler>>()) return value.as<std::shared_ptr<const Cycler>>()->depth;
  if (value.is<std::shared_ptr<const Joiner>>()) return value.as<std::shared_ptr<const Joiner>>()->depth;
  if (value.is<std::shared_ptr<const Loop>>()) return value.as<std::shared_ptr<const Loop>>()->value_depth;
  if (value.is<std::shared_ptr<const Method>>()) return depth_of(value.as<std::shared_ptr<const Method>>()->self);
  return 0;
}

int one_deeper(int depth, TemplateBudget& budget) {
  if (depth >= kValueDepth) budget.fail("values lie within one another more than {} deep", kValueDepth);
  return depth + 1;
}

// The items of each are distinct.
bool equal_sets(const Values& left, const Values& right, TemplateBudget& budget) {
  return left.size() == right.size() && std::ranges::all_of(left, [&](const Value& item) {
           return std::ranges::any_of(right, [&](const Value& other) { return equal(item, other, budget); });
         });
}

bool equal_lists(const List& left, const List& right, TemplateBudget& budget) {
  if (left.form == List::Form::values) return false;  // Python compares these by identity
  if (left.is_set() && right.is_set()) return equal_sets(left.items, right.items, budget);
  if (left.form != right.form || left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i)
    if (!equal(left.items[i], right.items[i], budget)) return false;
  return true;
}

bool equal_dicts(const Dict& left, const Dict& right, TemplateBudget& budget) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    const Value* other = find(right, key, budget);
    if (other == nullptr || !equal(value, *other, budget)) return false;
  }
  return true;
}

template <typename T>
bool same_object(const Value& left, const Value& right) {
  return left.is<std::shared_ptr<T>>() && right.is<std::shared_ptr<T>>() && left.as<std::shared_ptr<T>>() == right.as<std::shared_ptr<T>>();
}

template <typename T>
int three_way(const T& left, const T& right) {
  return left < right ? -1 : right < left ? 1 : 0;
}

}  // namespace

Value Value::undefined(std::string name) {
  Value value;
  value.held_ = Undefined{std::make_shared<const std::string>(std::move(name))};
  return value;
}

const std::string& Value::undefined_name() const {
  static const std::string nameless = "a value";
  const auto& name = as<Undefined>().name;
  return name ? *name : nameless;
}

int depth_around(std::span<const Value> items, TemplateBudget& budget) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return one_deeper(depth, budget);
}

Value make_list(Values items, TemplateBudget& budget, List::Form form) {
  budget.bytes(sizeof(List) + items.size() * sizeof(Value));
  auto list = std::make_shared<List>();
  list->depth = depth_around(items, budget);
  list->items = std::move(items);
  list->form = form;
  return std::shared_ptr<const List>(std::move(list));
}

Value make_range(const std::array<int64_t, 3>& bounds, TemplateBudget& budget) {
  constexpr int64_t kRange = 100'000;  // the limit of Jinja's sandbox
  const auto [start, stop, step] = bounds;
  if (step == 0) budget.fail("range has the step 0");
  auto list = std::make_shared<List>();
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(list->items.size()) == kRange) budget.fail("range has more than {} numbers", kRange);
    list->items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  budget.bytes(sizeof(List) + list->items.size() * sizeof(Value));
  list->form = List::Form::range;
  list->bounds = bounds;
  return std::shared_ptr<const List>(std::move(list));
}

Value make_dict(std::vector<Entry> entries, TemplateBudget& budget) {
  budget.bytes(sizeof(Dict) + entries.size() * sizeof(Entry));
  auto dict = std::make_shared<Dict>();
  int depth = 0;
  for (const auto& [key, value] : entries) depth = std::max({depth, depth_of(key), depth_of(value)});
  dict->depth = one_deeper(depth, budget);
  dict->entries = std::move(entries);
  return std::shared_ptr<const Dict>(std::move(dict));
}

Value make_cycler(Values items, TemplateBudget& budget) {
  budget.bytes(sizeof(Cycler) + items.size() * sizeof(Value));
  const int depth = depth_around(items, budget);
  return std::make_shared<const Cycler>(Cycler{.items = std::move(items), .depth = depth});
}

Value make_joiner(Value separator, TemplateBudget& budget) {
  budget.bytes(sizeof(Joiner));
  const int depth = depth_around({&separator, 1}, budget);
  return std::make_shared<const Joiner>(Joiner{.separator = std::move(separator), .depth = depth});
}

Value make_text(std::string text, TemplateBudget& budget) {
  budget.bytes(text.size() + sizeof(std::string));
  return Value(std::move(text));
}

std::string_view form_name(List::Form form) {
  constexpr std::string_view kForms[] = {"list", "tuple", "range", "dict_keys", "dict_items", "dict_values", "generator"};
  return kForms[static_cast<size_t>(form)];
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "undefined";
  if (value.is_none()) return "none";
  if (value.is_bool()) return "bool";
  if (value.is<int64_t>()) return "int";
  if (value.is<double>()) return "float";
  if (value.is_text()) return "string";
  if (value.is_list()) return form_name(value.list().form);
  if (value.is_dict()) return "dict";
  if (value.is<std::shared_ptr<Namespace>>()) return "namespace";
  if (value.is<std::shared_ptr<const Macro>>()) return "macro";
  if (value.is<std::shared_ptr<const Loop>>()) return "loop";
  if (value.is<std::shared_ptr<const Cycler>>()) return "cycler";
  if (value.is<std::shared_ptr<const Joiner>>()) return "joiner";
  return "function";
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.number() != 0;
  if (value.is_text()) return !value.text().empty();
  if (value.is_list()) return value.list().form == List::Form::once || !value.list().items.empty();
  if (value.is_dict()) return !value.dict().entries.empty();
  return true;
}

bool equal(const Value& left, const Value& right, TemplateBudget& budget) {
  budget.step();
  if (left.is_integer() && right.is_integer()) return left.integer() == right.integer();
  if (left.is_number() && right.is_number()) return left.number() == right.number();
  if (left.is_text() && right.is_text()) {
    budget.step(static_cast<int64_t>(left.text().size()) / 64);
    return left.text() == right.text();
  }
  if (left.is_list() && right.is_list()) return &left.list() == &right.list() || equal_lists(left.list(), right.list(), budget);
  if (left.is_dict() && right.is_dict()) return &left.dict() == &right.dict() || equal_dicts(left.dict(), right.dict(), budget);
  if (left.is_undefined() || left.is_none()) return type_name(left) == type_name(right);
  return same_object<Namespace>(left, right) || same_object<const Macro>(left, right) || same_object<const Loop>(left, right) ||
         same_object<const Cycler>(left, right) || same_object<const Joiner>(left, right);
}

int order(const Value& left, const Value& right, TemplateBudget& budget) {
  budget.step();
  if (left.is_integer() && right.is_integer()) return three_way(left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return three_way(left.number(), right.number());
  if (left.is_text() && right.is_text()) {
    budget.step(static_cast<int64_t>(left.text().size()) / 64);
    return left.text().compare(right.text());
  }
  if (left.is_list() && right.is_list() && left.list().form == right.list().form && left.list().is_list_or_tuple()) {
    const Values& a = left.list().items;
    const Values& b = right.list().items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (!equal(a[i], b[i], budget)) return order(a[i], b[i], budget);
    return three_way(a.size(), b.size());
  }
  if (left.is_undefined() || right.is_undefined())
    budget.fail("{} is undefined and cannot be compared", (left.is_undefined() ? left : right).undefined_name());
  budget.fail("{} and {} cannot be compared", type_name(left), type_name(right));
}

void check_key(const Value& key, TemplateBudget& budget) {
  budget.step();
  if (key.is_dict() || (key.is_list() && (key.list().form == List::Form::list || key.list().is_set())))
    budget.fail("a {} cannot be a key of a dict, or unique", type_name(key));
  if (key.is_list() && key.list().form == List::Form::tuple)
    for (const Value& item : key.list().items) check_key(item, budget);
}

const Value* find(const Dict& dict, const Value& key, TemplateBudget& budget) {
  check_key(key, budget);
  for (const auto& [known, value] : dict.entries)
    if (equal(known, key, budget)) return &value;
  return nullptr;
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& [known, value] : dict.entries)
    if (known.is_text() && known.text() == key) return &value;
  return nullptr;
}

Values items_of(const Value& value, TemplateBudget& budget) {
  if (value.is_undefined()) return {};
  Values items;
  if (value.is_list()) {
    const List& list = value.list();
    if (list.form == List::Form::once && std::exchange(list.used, true)) return {};
    budget.bytes(list.items.size() * sizeof(Value));
    return list.items;
  }
  if (value.is_dict()) {
    budget.bytes(value.dict().entries.size() * sizeof(Value));
    for (const auto& [key, _] : value.dict().entries) items.push_back(key);
    return items;
  }
  if (value.is_text()) {
    budget.bytes(value.text().size() * sizeof(std::string_view));
    for (const std::string_view character : characters_of(value.text())) {
      budget.bytes(sizeof(Value) + sizeof(std::string));
      items.emplace_back(std::string(character));
    }
    return items;
  }
  budget.fail("{} cannot be gone through: only lists, dicts and strings can", type_name(value));
}

int64_t length(const Value& value, TemplateBudget& budget) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) return character_count(value.text());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries.size());
  if (value.is_list() && value.list().has_length()) return static_cast<int64_t>(value.list().items.size());
  if (value.is_list()) budget.fail("what a filter gives has no length yet: put \"| list\" before it");
  budget.fail("{} has no length", type_name(value));
}

}  // namespace cairn::data::jinja
