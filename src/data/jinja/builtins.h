// The filters, tests and methods that templates may use. Each is one line in the list of filters.cpp, is_tests.cpp or methods.cpp.
#pragma once
#include <string>
#include <string_view>

#include "data/jinja/arguments.h"

namespace cairn::data::jinja {

// `value | name(arguments)`.
Value apply_filter(const std::string& name, const Value& input, const CallArguments& arguments, TemplateBudget& budget);

bool has_filter(std::string_view name);

// `value is name(arguments)`.
bool apply_test(const std::string& name, const Value& value, const CallArguments& arguments, TemplateBudget& budget);

bool has_test(std::string_view name);

// `value.name(arguments)`: those methods of Python's strings, dicts and lists that change nothing, those of loop and of cyclers.
bool has_method(const Value& value, const std::string& name);
Value call_method(const Method& method, const CallArguments& arguments, TemplateBudget& budget);
// Why a value lacks a method that Python's has, for errors; empty where Python has no such method.
std::string refused_method(const Value& value, const std::string& name);

}  // namespace cairn::data::jinja
