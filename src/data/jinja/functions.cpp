// Evaluator: calls of macros, methods and the built-in functions.
#include "data/jinja/builtins.h"
#include "data/jinja/evaluator.h"
#include "data/jinja/loop.h"
#include "data/jinja/print.h"

namespace cairn::data::jinja {
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
  if (called.is<std::shared_ptr<const Loop>>()) return call_loop(*called.as<std::shared_ptr<const Loop>>(), arguments);
  if (called.is<std::shared_ptr<const Joiner>>()) return call_joiner(*called.as<std::shared_ptr<const Joiner>>(), arguments);
  if (called.is<Global>()) return call_global(called.as<Global>().name, arguments);
  if (called.is_undefined()) budget_.fail("{} is undefined and cannot be called", called.undefined_name());
  budget_.fail("a {} cannot be called", type_name(called));
}

Value Evaluator::call_joiner(const Joiner& joiner, const CallArguments& arguments) {
  ArgumentReader("a joiner", arguments, budget_).done();
  return std::exchange(joiner.used, true) ? joiner.separator : Value(std::string());
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
    return Value(std::move(text));
  } catch (...) {
    scope_ = before;
    throw;
  }
}

Value Evaluator::call_range(const CallArguments& arguments) {
  ArgumentReader take("range", arguments, budget_);
  const Value given = take.require("start");
  if (!given.is_integer()) budget_.fail("range goes from {}, and must go from a whole number", type_name(given));
  const auto stop = take.take("stop");
  if (stop && !stop->is_integer()) budget_.fail("range goes to {}, and must go to a whole number", type_name(*stop));
  const int64_t step = take.integer_or("step", 1);
  take.done();
  return make_range({stop ? given.integer() : 0, stop ? stop->integer() : given.integer(), step}, budget_);
}

// dict(a=1), dict(other), dict([(key, value), ...]).
Value Evaluator::call_dict(const CallArguments& arguments) {
  std::vector<Entry> entries;
  const auto put = [&](const Value& key, const Value& value) {
    check_key(key, budget_);
    for (Entry& known : entries)
      if (equal(known.first, key, budget_)) return void(known.second = value);
    entries.emplace_back(key, value);
  };
  if (arguments.positional.size() > 1) budget_.fail("dict was given {} arguments and takes 1", arguments.positional.size());
  for (const Value& from : arguments.positional) {
    if (from.is_dict()) entries = from.dict().entries;
    if (from.is_dict()) continue;
    for (const Value& pair : items_of(from, budget_)) {
      const Values both = items_of(pair, budget_);
      if (both.size() != 2) budget_.fail("dict was given {} items instead of a key and a value", both.size());
      put(both[0], both[1]);
    }
  }
  for (const auto& [key, value] : arguments.named) put(make_text(key, budget_), value);
  return make_dict(std::move(entries), budget_);
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
  if (name == "range") return call_range(arguments);
  if (name == "namespace") return make_namespace(arguments);
  if (name == "dict") return call_dict(arguments);
  if (name == "cycler") {
    if (arguments.positional.empty() || !arguments.named.empty()) budget_.fail("cycler needs items to go round in, without names");
    return make_cycler(arguments.positional, budget_);
  }
  ArgumentReader take(name, arguments, budget_);
  if (name == "joiner") {
    Value separator = take.take("sep").value_or(Value(std::string(", ")));
    take.done();
    return make_joiner(std::move(separator), budget_);
  }
  const Value argument = take.require(name == "raise_exception" ? "message" : "format");
  take.done();
  if (name == "raise_exception") budget_.fail("the template refuses this conversation: {}", to_text(argument, budget_));
  return make_text(date_(to_text(argument, budget_)), budget_);
}

}  // namespace cairn::data::jinja
