// Evaluator: statements.
#include <algorithm>

#include "data/jinja/evaluator.h"
#include "data/jinja/loop.h"
#include "data/jinja/print.h"

namespace cairn::data::jinja {
namespace {

// Sets a variable and restores its old value at the end of the scope.
template <typename T>
class Swap {
 public:
  Swap(T& place, T value) : place_(place), before_(std::exchange(place, std::move(value))) {}
  ~Swap() { place_ = std::move(before_); }
  Swap(const Swap&) = delete;
  Swap& operator=(const Swap&) = delete;

 private:
  T& place_;
  T before_;
};

std::shared_ptr<Scope> inside(const std::shared_ptr<Scope>& outer) { return std::make_shared<Scope>(Scope{.outer = outer}); }

}  // namespace

RenderedTemplate Evaluator::render() {
  rendered_ = {};
  out_ = &rendered_.text;
  run(body_);
  return std::move(rendered_);
}

void Evaluator::write(std::string_view text) {
  budget_.bytes(text.size());
  *out_ += text;
}

void Evaluator::declare(const std::string& name, Value value) {
  auto& names = scope_->names;
  const auto known = std::find_if(names.begin(), names.end(), [&](const auto& entry) { return entry.first == name; });
  if (known != names.end()) {
    known->second = std::move(value);
  } else {
    budget_.bytes(64);
    names.emplace_back(name, std::move(value));
  }
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const Values items = items_of(value, budget_);
    if (items.size() != target.parts.size()) budget_.fail("{} names for {} items", target.parts.size(), items.size());
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) return declare(target.name, value);
  const Value space = look_up(target.name);
  if (!space.is<std::shared_ptr<Namespace>>())
    budget_.fail("{}.{} cannot be set: {} is {} and no namespace()", target.name, target.attribute, target.name, type_name(space));
  auto& attributes = space.as<std::shared_ptr<Namespace>>()->attributes;
  const auto known = std::find_if(attributes.begin(), attributes.end(), [&](const auto& entry) { return entry.first == target.attribute; });
  if (known != attributes.end()) {
    known->second = value;
  } else {
    budget_.bytes(64);
    attributes.emplace_back(target.attribute, value);
  }
}

std::string Evaluator::capture(const Block& body, std::shared_ptr<Scope> scope) {
  std::string text;
  const Swap<std::shared_ptr<Scope>> within(scope_, std::move(scope));
  const Swap<std::string*> into(out_, &text);
  run(body);
  return text;
}

Evaluator::ControlFlow Evaluator::run(const Block& block) {
  const Deeper deeper(*this);
  for (const Statement& statement : block) {
    budget_.step();
    budget_.at_line(statement.line);
    const ControlFlow flow = std::visit([this](const auto& what) { return run(what); }, statement.what);
    if (flow != ControlFlow::on) return flow;
  }
  return ControlFlow::on;
}

Evaluator::ControlFlow Evaluator::run(const Text& text) {
  write(text.text);
  return ControlFlow::on;
}

Evaluator::ControlFlow Evaluator::run(const Output& output) {
  const Value value = evaluate(*output.value);
  value.is_text() ? write(value.text()) : write(to_text(value, budget_));
  return ControlFlow::on;
}

Evaluator::ControlFlow Evaluator::run(const If& choice) {
  for (const auto& [condition, body] : choice.branches)
    if (truth(evaluate(*condition))) return run(body);
  return run(choice.otherwise);
}

// The items that satisfy the loop's own condition.
Values Evaluator::chosen_items(const For& loop, const Value& all) {
  Values items = items_of(all, budget_);
  if (!loop.condition) return items;
  Values chosen;
  for (const Value& item : items) {
    const Swap<std::shared_ptr<Scope>> within(scope_, inside(scope_));
    assign(loop.target, item);
    if (truth(evaluate(*loop.condition))) chosen.push_back(item);
  }
  return chosen;
}

Evaluator::ControlFlow Evaluator::run(const For& loop) { return run_loop(loop, evaluate(*loop.items), 1); }

Evaluator::ControlFlow Evaluator::run_loop(const For& loop, const Value& all, int depth) {
  const auto state = std::make_shared<Loop>();
  state->items = chosen_items(loop, all);
  if (state->items.empty()) return run(loop.otherwise);
  state->value_depth = depth_around(state->items, budget_);
  state->depth = depth;
  if (loop.recursive) {
    state->recursive = &loop;
    state->scope = scope_;
  }
  for (size_t i = 0; i < state->items.size(); ++i) {
    budget_.step(4);
    const Swap<std::shared_ptr<Scope>> within(scope_, inside(scope_));
    state->index = static_cast<int64_t>(i);
    declare("loop", std::shared_ptr<const Loop>(state));
    assign(loop.target, state->items[i]);
    if (run(loop.body) == ControlFlow::break_loop) break;
  }
  return ControlFlow::on;
}

Value Evaluator::call_loop(const Loop& loop, const CallArguments& arguments) {
  if (loop.recursive == nullptr) budget_.fail("a loop can call itself only if its tag ends with \"recursive\"");
  ArgumentReader take("loop", arguments, budget_);
  const Value all = take.require("iterable");
  take.done();
  const auto outer = loop.scope.lock();
  if (!outer) budget_.fail("a loop is called outside the block that it stands in");
  const Deeper deeper(*this);
  std::string text;
  const Swap<std::shared_ptr<Scope>> within(scope_, outer);
  const Swap<std::string*> into(out_, &text);
  run_loop(*loop.recursive, all, loop.depth + 1);
  return Value(std::move(text));
}

Evaluator::ControlFlow Evaluator::run(const Set& set) {
  assign(set.target, evaluate(*set.value));
  return ControlFlow::on;
}

Evaluator::ControlFlow Evaluator::run(const SetBlock& set) {
  Value text(capture(set.body, inside(scope_)));
  if (set.filter) {
    const Swap<Value> captured(captured_, text);
    text = evaluate(*set.filter);
  }
  assign(set.target, text);
  return ControlFlow::on;
}

Evaluator::ControlFlow Evaluator::run(const FilterBlock& filter) {
  const Swap<Value> captured(captured_, Value(capture(filter.body, inside(scope_))));
  write(to_text(evaluate(*filter.filter), budget_));
  return ControlFlow::on;
}

Evaluator::ControlFlow Evaluator::run(const With& with) {
  const auto scope = inside(scope_);
  Values values;
  for (const auto& [_, value] : with.values) values.push_back(evaluate(*value));
  const Swap<std::shared_ptr<Scope>> within(scope_, scope);
  for (size_t i = 0; i < values.size(); ++i) assign(with.values[i].first, values[i]);
  return run(with.body);
}

Evaluator::ControlFlow Evaluator::run(const DefineMacro& define) {
  declare(define.macro->name, std::make_shared<const Macro>(Macro{define.macro, scope_}));
  return ControlFlow::on;
}

Evaluator::ControlFlow Evaluator::run(const CallBlock& block) {
  const Value caller = std::make_shared<const Macro>(Macro{block.caller, scope_});
  write(to_text(call(*block.call, &caller), budget_));
  return ControlFlow::on;
}

Evaluator::ControlFlow Evaluator::run(const Generation& generation) {
  if (out_ != &rendered_.text || generating_)
    budget_.fail("{{% generation %}} inside a macro, a block that is set, or another one: it cannot be told what the assistant said");
  const Swap<bool> within_generation(generating_, true);
  const Swap<std::shared_ptr<Scope>> within(scope_, inside(scope_));
  const size_t first = rendered_.text.size();
  run(generation.body);
  rendered_.generated.emplace_back(first, rendered_.text.size());
  return ControlFlow::on;
}

}  // namespace cairn::data::jinja
