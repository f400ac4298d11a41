// Python's two ways to put values into a text: "{:>5}".format(value) and "%5d" % value.
#pragma once
#include <string>

#include "data/jinja/arguments.h"

namespace cairn::data::jinja {

// str.format: numbered and named fields, attributes and items of them, !r and !s, and format specifications for texts and numbers.
Value format_braces(const std::string& format, const CallArguments& arguments, TemplateBudget& budget);

// format % arguments: a tuple gives several, a dict those that %(name)s asks for, anything else one.
Value format_percent(const std::string& format, const Value& arguments, TemplateBudget& budget);

}  // namespace cairn::data::jinja
