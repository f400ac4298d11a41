// The tests of templates: `value is name(arguments)`.
#pragma once
#include <string>

#include "data/jinja/arguments.h"

namespace cairn::data::jinja {

bool apply_test(const std::string& name, const Value& value, const CallArguments& arguments, TemplateBudget& budget);

}  // namespace cairn::data::jinja
