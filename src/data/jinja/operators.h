// The operators, as in Python.
#pragma once
#include <string>
#include <string_view>

#include "data/jinja/syntax_tree.h"

namespace cairn::data::jinja {

Value apply(Operator sign, const Value& left, const Value& right, TemplateBudget& budget);
Value negative(const Value& value, TemplateBudget& budget);
bool contains(const Value& whole, const Value& part, TemplateBudget& budget);
// str.replace: at most `count` times where that is not negative.
Value replace_text(std::string_view text, std::string_view old, std::string_view with, int64_t count, TemplateBudget& budget);

}  // namespace cairn::data::jinja
