#pragma once
#include <string>

namespace cairn::model {

// Whether `name` matches `pattern`, in which * stands for any characters.
bool matches(const std::string& pattern, const std::string& name);

}  // namespace cairn::model
