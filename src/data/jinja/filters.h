// The filters of templates: `value | name(arguments)`.
#pragma once
#include <string>

#include "data/jinja/arguments.h"

namespace cairn::data::jinja {

Value apply_filter(const std::string& name, const Value& input, const CallArguments& arguments, TemplateBudget& budget);

}  // namespace cairn::data::jinja
