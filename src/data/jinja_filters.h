// The filters of templates: `value | name(arguments)`.
#pragma once
#include <string>

#include "data/jinja_call.h"

namespace cairn::data::jinja {

Value apply_filter(const std::string& name, const Value& input, const CallArguments& arguments, Meter& meter);

}  // namespace cairn::data::jinja
