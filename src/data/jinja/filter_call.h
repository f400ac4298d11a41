// What a filter is called with, and the filters that lie beside the list in filters.cpp.
#pragma once
#include <string>
#include <string_view>

#include "data/jinja/arguments.h"
#include "data/jinja/print.h"

namespace cairn::data::jinja {

struct FilterCall {
  const Value& input;
  const CallArguments& arguments;
  ArgumentReader& take;
  TemplateBudget& budget;

  std::string text() const { return to_text(input, budget); }
  Value give(std::string_view made) const { return make_text(std::string(made), budget); }
};

// The sort key: texts ignore case unless case_sensitive is set.
Value sort_key(const Value& value, bool case_sensitive);
// The items in the order of their keys, which stays the same for equal ones.
Values in_order(const Values& items, const Values& keys, bool reverse, TemplateBudget& budget);

// list_filters.cpp
Value largest(FilterCall& call);
Value smallest(FilterCall& call);
Value group_by(FilterCall& call);
Value batches(FilterCall& call);
Value slices(FilterCall& call);

// text_filters.cpp
Value centered(FilterCall& call);
Value truncated(FilterCall& call);
Value formatted(FilterCall& call);
Value word_count(FilterCall& call);
Value integer_of(FilterCall& call);
Value float_of(FilterCall& call);

}  // namespace cairn::data::jinja
