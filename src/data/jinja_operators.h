// What the signs between values do, as in Python.
#pragma once
#include <string>
#include <string_view>

#include "data/jinja_syntax.h"

namespace cairn::data::jinja {

Value apply(Operator sign, const Value& left, const Value& right, Meter& meter);
Value negative(const Value& value, Meter& meter);
bool contains(const Value& whole, const Value& part, Meter& meter);
// str.replace: at most `count` times where that is not negative.
Value replace_text(std::string_view text, std::string_view old, std::string_view with, int64_t count, Meter& meter);

}  // namespace cairn::data::jinja
