// Filters that order or divide lists.
#include <algorithm>

#include "data/jinja/filter_call.h"
#include "data/jinja/lookup.h"
#include "data/jinja/python_text.h"

namespace cairn::data::jinja {
namespace {

// The first of the items whose key comes before all others, or after them.
Value extreme(FilterCall& c, int wanted) {
  const bool case_sensitive = c.take.flag("case_sensitive");
  const auto attribute = c.take.take("attribute");
  const Values items = items_of(c.input, c.budget);
  if (items.empty()) return Value::undefined("the largest or smallest item of something empty");
  const auto key = [&](const Value& item) { return sort_key(part_or_item(item, attribute, c.budget), case_sensitive); };
  const Value* best = &items[0];
  Value best_key = key(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value own = key(items[i]);
    if (order(own, best_key, c.budget) * wanted <= 0) continue;
    best = &items[i];
    best_key = std::move(own);
  }
  return *best;
}

int64_t count_argument(FilterCall& c, std::string_view filter, std::string_view name) {
  const Value given = c.take.require(name);
  if (!given.is_integer() || given.integer() < 1) c.budget.fail("filter '{}': '{}' must be a whole number from 1 on", filter, name);
  c.budget.bytes(static_cast<size_t>(std::min<int64_t>(given.integer(), kMadeBytes)) * sizeof(Value));
  return given.integer();
}

}  // namespace

Value sort_key(const Value& value, bool case_sensitive) { return value.is_text() && !case_sensitive ? Value(lower(value.text())) : value; }

Values in_order(const Values& items, const Values& keys, bool reverse, TemplateBudget& budget) {
  std::vector<size_t> places(items.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::stable_sort(places.begin(), places.end(), [&](size_t left, size_t right) {
    return reverse ? order(keys[right], keys[left], budget) < 0 : order(keys[left], keys[right], budget) < 0;
  });
  Values made;
  for (const size_t place : places) made.push_back(items[place]);
  return made;
}

Value largest(FilterCall& c) { return extreme(c, 1); }
Value smallest(FilterCall& c) { return extreme(c, -1); }

Value group_by(FilterCall& c) {
  const Value attribute = c.take.require("attribute");
  const auto otherwise = c.take.take("default");
  const bool case_sensitive = c.take.flag("case_sensitive");
  const auto value_of = [&](const Value& item) {
    Value value = get_path(item, attribute, c.budget);
    return value.is_undefined() && otherwise && !otherwise->is_none() ? *otherwise : value;
  };
  const Values items = items_of(c.input, c.budget);
  Values keys;
  for (const Value& item : items) keys.push_back(sort_key(value_of(item), case_sensitive));
  Values groups, members;
  const auto close = [&] {
    if (members.empty()) return;
    const Value grouper = value_of(members[0]);
    const Value tuple = make_list({grouper, make_list(std::move(members), c.budget)}, c.budget, List::Form::tuple);
    auto named = std::make_shared<List>(tuple.list());
    named->is_group = true;
    groups.emplace_back(std::shared_ptr<const List>(std::move(named)));
    members = {};
  };
  Value last;
  for (const Value& item : in_order(items, keys, false, c.budget)) {
    Value key = sort_key(value_of(item), case_sensitive);
    if (!members.empty() && !equal(key, last, c.budget)) close();
    last = std::move(key);
    members.push_back(item);
  }
  close();
  return make_list(std::move(groups), c.budget);
}

Value batches(FilterCall& c) {
  const int64_t each = count_argument(c, "batch", "linecount");
  const Value fill = c.take.take("fill_with").value_or(Value(None{}));
  Values made, batch;
  for (const Value& item : items_of(c.input, c.budget)) {
    batch.push_back(item);
    if (static_cast<int64_t>(batch.size()) == each) made.push_back(make_list(std::exchange(batch, {}), c.budget));
  }
  if (!batch.empty()) {
    if (!fill.is_none()) batch.resize(static_cast<size_t>(each), fill);
    made.push_back(make_list(std::move(batch), c.budget));
  }
  return make_list(std::move(made), c.budget, List::Form::once);
}

Value slices(FilterCall& c) {
  const int64_t count = count_argument(c, "slice", "slices");
  const Value fill = c.take.take("fill_with").value_or(Value(None{}));
  const Values items = items_of(c.input, c.budget);
  const auto total = static_cast<int64_t>(items.size());
  Values made;
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t end = at + total / count + (i < total % count ? 1 : 0);
    Values part(items.begin() + at, items.begin() + end);
    if (!fill.is_none() && i >= total % count) part.push_back(fill);
    made.push_back(make_list(std::move(part), c.budget));
    at = end;
  }
  return make_list(std::move(made), c.budget, List::Form::once);
}

}  // namespace cairn::data::jinja
