// The methods of strings, dicts and loops that templates may call: those of Python that change nothing.
#pragma once
#include <string>

#include "data/jinja/arguments.h"

namespace cairn::data::jinja {

bool has_method(const Value& value, const std::string& name);
Value call_method(const Method& method, const CallArguments& arguments, TemplateBudget& budget);

// Why a value lacks a method that Python's has, for complaints; empty where it never had one.
std::string refused_method(const Value& value, const std::string& name);

}  // namespace cairn::data::jinja
