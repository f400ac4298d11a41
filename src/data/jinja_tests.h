// The tests of templates: `value is name(arguments)`.
#pragma once
#include <string>

#include "data/jinja_call.h"

namespace cairn::data::jinja {

bool apply_test(const std::string& name, const Value& value, const CallArguments& arguments, Meter& meter);

}  // namespace cairn::data::jinja
