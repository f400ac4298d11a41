#include "data/jinja/evaluator.h"

#include <algorithm>
#include <array>

#include "data/jinja/builtins.h"
#include "data/jinja/lookup.h"
#include "data/jinja/operators.h"
#include "data/jinja/print.h"

namespace cairn::data::jinja {
namespace {

using Kind = Expression::Kind;

constexpr std::array kGlobals = {"range", "namespace", "dict", "cycler", "joiner", "raise_exception"};

}  // namespace

Evaluator::Evaluator(const Block& body, std::vector<std::pair<std::string, Value>> variables, Date date, TemplateBudget& budget)
    : body_(body), date_(std::move(date)), budget_(budget), scope_(std::make_shared<Scope>()) {
  auto& names = scope_->names;
  for (const char* name : kGlobals) names.emplace_back(name, Global{name});
  if (date_) names.emplace_back("strftime_now", Global{"strftime_now"});
  for (auto& [name, value] : variables) declare(name, std::move(value));
}

Evaluator::~Evaluator() {
  for (const auto& space : namespaces_) space->attributes.clear();
}

Value Evaluator::look_up(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
    budget_.step();
    for (const auto& [known, value] : scope->names)
      if (known == name) return value;
  }
  return Value::undefined("'" + name + "'");
}

Value Evaluator::evaluate(const Expression& expression) {
  const int line = budget_.line();
  budget_.at_line(expression.line);
  Value value = evaluate_deeper(expression);
  budget_.at_line(line);
  return value;
}

Value Evaluator::evaluate_deeper(const Expression& expression) {
  const Deeper deeper(*this);
  const auto part = [&](size_t index) { return evaluate(*expression.parts[index]); };
  switch (expression.kind) {
    case Kind::constant:
      return expression.constant;
    case Kind::captured:
      return captured_;
    case Kind::name:
      return look_up(expression.name);
    case Kind::list:
    case Kind::tuple:
      return evaluate_parts(expression);
    case Kind::dict:
      return evaluate_dict(expression);
    case Kind::attribute:
      return get_attribute(part(0), expression.name, budget_);
    case Kind::item: {
      const Value of = part(0);
      return get_item(of, part(1), budget_);
    }
    case Kind::slice:
      return evaluate_slice(expression);
    case Kind::call:
      return call(expression);
    case Kind::filter: {
      const Value input = part(0);
      return apply_filter(expression.name, input, evaluate(expression.arguments), budget_);
    }
    case Kind::test: {
      const Value value = part(0);
      return apply_test(expression.name, value, evaluate(expression.arguments), budget_);
    }
    case Kind::negative:
      return negative(part(0), budget_);
    case Kind::positive:
      return negative(negative(part(0), budget_), budget_);
    case Kind::negation:
      return !truth(part(0));
    case Kind::chain:
      return evaluate_chain(expression);
    case Kind::compare:
      return evaluate_compare(expression);
    case Kind::join:
      return evaluate_join(expression);
    case Kind::all:
    case Kind::any: {
      Value value = part(0);
      for (size_t i = 1; i < expression.parts.size() && truth(value) == (expression.kind == Kind::all); ++i) value = part(i);
      return value;
    }
    case Kind::choice:
      if (truth(part(1))) return part(0);
      return expression.parts[2] ? part(2) : Value::undefined("an \"if\" without \"else\"");
  }
  return {};
}

Value Evaluator::evaluate_parts(const Expression& expression) {
  Values items;
  for (const ExpressionPointer& part : expression.parts) items.push_back(evaluate(*part));
  return make_list(std::move(items), budget_, expression.kind == Kind::tuple ? List::Form::tuple : List::Form::list);
}

Value Evaluator::evaluate_dict(const Expression& expression) {
  std::vector<Entry> entries;
  for (size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
    Value key = evaluate(*expression.parts[i]);
    Value value = evaluate(*expression.parts[i + 1]);
    check_key(key, budget_);
    const auto known = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return equal(entry.first, key, budget_); });
    if (known != entries.end()) {
      known->second = std::move(value);
    } else {
      entries.emplace_back(std::move(key), std::move(value));
    }
  }
  return make_dict(std::move(entries), budget_);
}

Value Evaluator::evaluate_slice(const Expression& expression) {
  const Value of = evaluate(*expression.parts[0]);
  const auto bound = [&](size_t index) -> std::optional<int64_t> {
    if (!expression.parts[index]) return std::nullopt;
    const Value value = evaluate(*expression.parts[index]);
    if (value.is_none()) return std::nullopt;
    if (!value.is_integer()) budget_.fail("a slice goes from {}, and must go from a whole number", type_name(value));
    return value.integer();
  };
  Slice slice;
  slice.first = bound(1);
  slice.last = bound(2);
  slice.stride = bound(3);
  return get_slice(of, slice, budget_);
}

Value Evaluator::evaluate_chain(const Expression& expression) {
  Value value = evaluate(*expression.parts[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i)
    value = apply(expression.operators[i], value, evaluate(*expression.parts[i + 1]), budget_);
  return value;
}

Value Evaluator::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.parts[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1]);
    if (!truth(apply(expression.operators[i], left, right, budget_))) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::evaluate_join(const Expression& expression) {
  std::string text;
  for (const ExpressionPointer& part : expression.parts) text += to_text(evaluate(*part), budget_);
  return make_text(std::move(text), budget_);
}

CallArguments Evaluator::evaluate(const Arguments& arguments) {
  CallArguments values;
  for (const ExpressionPointer& argument : arguments.positional) values.positional.push_back(evaluate(*argument));
  for (const auto& [name, argument] : arguments.named) values.named.emplace_back(name, evaluate(*argument));
  return values;
}

}  // namespace cairn::data::jinja
