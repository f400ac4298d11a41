// Evaluator: calls of macros, methods and the built-in functions.
#include "data/jinja/builtins.h"
#include "data/jinja/evaluator.h"
#include "data/jinja/print.h"

namespace cairn::data::jinja {
namespace {

constexpr int64_t kRange = 100'000;  // the limit of Jinja's sandbox

}  // namespace

Value Evaluator::call(const Expression& expression, const Value* caller) {
  const Expression& callee = *expression.parts[0];
  const Value called = evaluate(callee);
  if (called.is_undefined() && callee.kind == Expression::Kind::name && callee.name == "strftime_now")
    budget_.fail("asks for the date (strftime_now), and none is given. Set data.template_date.");
  if (called.is_undefined() && callee.kind == Expression::Kind::attribute) {
    const Value self = evaluate(*callee.parts[0]);
    if (const std::string why = refused_method(self, callee.name); !why.empty())
      budget_.fail("{}.{}() {}", type_name(self), callee.name, why);
    budget_.fail("a {} has no method '{}'", type_name(self), callee.name);
  }
  const CallArguments arguments = evaluate(expression.arguments);
  if (called.is<std::shared_ptr<const Method>>()) return call_method(*called.as<std::shared_ptr<const Method>>(), arguments, budget_);
  if (called.is<std::shared_ptr<const Macro>>()) return call_macro(*called.as<std::shared_ptr<const Macro>>(), arguments, caller);
  if (called.is<Global>()) return call_global(called.as<Global>().name, arguments);
  if (called.is_undefined()) budget_.fail("{} is undefined and cannot be called", called.undefined_name());
  budget_.fail("a {} cannot be called", type_name(called));
}

Value Evaluator::call_macro(const Macro& macro, const CallArguments& arguments, const Value* caller) {
  const MacroBody& body = *macro.body;
  const auto outer = macro.scope.lock();
  if (!outer) budget_.fail("the macro '{}' is called outside the loop or macro that defines it", body.name);
  const Deeper deeper(*this);
  const std::string called = "macro '" + body.name + "'";
  ArgumentReader take(called, arguments, budget_);
  const auto scope = std::make_shared<Scope>(Scope{.outer = outer});
  const auto before = std::exchange(scope_, scope);
  const int loops = std::exchange(loops_, 0);
  try {
    for (const Parameter& parameter : body.parameters) {
      auto value = take.take(parameter.name);
      if (!value) value = parameter.preset ? evaluate(*parameter.preset) : Value::undefined("'" + parameter.name + "'");
      declare(parameter.name, *std::move(value));
    }
    take.done();
    if (caller != nullptr) declare("caller", *caller);
    std::string text = capture(body.body, scope);
    scope_ = before;
    loops_ = loops;
    return Value(std::move(text));
  } catch (...) {
    scope_ = before;
    throw;
  }
}

Value Evaluator::make_range(const CallArguments& arguments) {
  ArgumentReader take("range", arguments, budget_);
  const Value given = take.require("start");
  if (!given.is_integer()) budget_.fail("range goes from {}, and must go from a whole number", type_name(given));
  const auto stop = take.take("stop");
  if (stop && !stop->is_integer()) budget_.fail("range goes to {}, and must go to a whole number", type_name(*stop));
  const int64_t stride = take.integer_or("step", 1);
  take.done();
  if (stride == 0) budget_.fail("range has the step 0");
  const int64_t first = stop ? given.integer() : 0;
  const int64_t last = stop ? stop->integer() : given.integer();
  Values items;
  for (int64_t i = first; stride > 0 ? i < last : i > last;) {
    if (static_cast<int64_t>(items.size()) == kRange) budget_.fail("range has more than {} numbers", kRange);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  return make_list(std::move(items), budget_);
}

Value Evaluator::make_namespace(const CallArguments& arguments) {
  auto space = std::make_shared<Namespace>();
  budget_.bytes(128 + 64 * arguments.named.size());
  for (const Value& from : arguments.positional) {
    if (!from.is_dict()) budget_.fail("namespace takes a dict or named values, not {}", type_name(from));
    for (const auto& [key, value] : from.dict().entries) space->attributes.emplace_back(to_text(key, budget_), value);
  }
  for (const auto& [name, value] : arguments.named) space->attributes.emplace_back(name, value);
  namespaces_.push_back(space);
  return space;
}

Value Evaluator::call_global(const std::string& name, const CallArguments& arguments) {
  if (name == "range") return make_range(arguments);
  if (name == "namespace") return make_namespace(arguments);
  if (name == "dict") {
    if (!arguments.positional.empty()) budget_.fail("dict takes named values only");
    std::vector<Entry> entries;
    for (const auto& [key, value] : arguments.named) entries.emplace_back(make_text(key, budget_), value);
    return make_dict(std::move(entries), budget_);
  }
  ArgumentReader take(name, arguments, budget_);
  const Value argument = take.require(name == "raise_exception" ? "message" : "format");
  take.done();
  if (name == "raise_exception") budget_.fail("the template refuses this conversation: {}", to_text(argument, budget_));
  return make_text(date_(to_text(argument, budget_)), budget_);
}

}  // namespace cairn::data::jinja
