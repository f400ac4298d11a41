// A tree-walking interpreter that renders a parsed template. It reads no file, clock or environment; it can only produce text.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/jinja/arguments.h"
#include "data/jinja/syntax_tree.h"

namespace cairn::data::jinja {

// Variables of one scope; inner scopes see outer ones.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::vector<std::pair<std::string, Value>> names = {};
};

// A macro and the scope that defines it; it cannot be called once that scope has ended.
struct Macro {
  std::shared_ptr<const MacroBody> body;
  std::weak_ptr<Scope> scope;
};

struct RenderedTemplate {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generated;  // byte ranges [first, end) that {% generation %} blocks wrote
};

class Evaluator {
 public:
  using Date = std::function<std::string(const std::string& format)>;

  // `variables` are the template's variables. The function strftime_now exists only where `date` is given.
  Evaluator(const Block& body, std::vector<std::pair<std::string, Value>> variables, Date date, TemplateBudget& budget);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  RenderedTemplate render();

 private:
  enum class ControlFlow { on, break_loop, continue_loop };
  class Deeper;

  // Statements (jinja_run.cpp).
  ControlFlow run(const Block& block);
  ControlFlow run(const Text& text);
  ControlFlow run(const Output& output);
  ControlFlow run(const If& choice);
  ControlFlow run(const For& loop);
  ControlFlow run(const Set& set);
  ControlFlow run(const SetBlock& set);
  ControlFlow run(const FilterBlock& filter);
  ControlFlow run(const With& with);
  ControlFlow run(const DefineMacro& define);
  ControlFlow run(const CallBlock& call);
  ControlFlow run(const Generation& generation);
  ControlFlow run(const Break&) { return ControlFlow::break_loop; }
  ControlFlow run(const Continue&) { return ControlFlow::continue_loop; }
  void write(std::string_view text);
  std::string capture(const Block& body, std::shared_ptr<Scope> scope);
  void assign(const Target& target, const Value& value);
  void declare(const std::string& name, Value value);
  Values chosen_items(const For& loop, const Value& all);
  ControlFlow run_loop(const For& loop, const Value& all, int depth);

  // Expressions (jinja_eval.cpp).
  Value evaluate(const Expression& expression);
  Value evaluate_deeper(const Expression& expression);
  Value evaluate_parts(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_chain(const Expression& expression);
  Value evaluate_join(const Expression& expression);
  Value look_up(const std::string& name);
  CallArguments evaluate(const Arguments& arguments);

  // Calls (jinja_functions.cpp).
  Value call(const Expression& expression, const Value* caller = nullptr);
  Value call_macro(const Macro& macro, const CallArguments& arguments, const Value* caller);
  Value call_global(const std::string& name, const CallArguments& arguments);
  Value call_loop(const Loop& loop, const CallArguments& arguments);
  Value call_joiner(const Joiner& joiner, const CallArguments& arguments);
  Value call_range(const CallArguments& arguments);
  Value call_dict(const CallArguments& arguments);
  Value make_namespace(const CallArguments& arguments);

  const Block& body_;
  Date date_;
  TemplateBudget& budget_;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  RenderedTemplate rendered_;
  Value captured_;
  int depth_ = 0;
  bool generating_ = false;
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // emptied at the end, because one may hold a reference to itself
};

// Held while a nested node is evaluated; counts a step and bounds the depth.
class Evaluator::Deeper {
 public:
  explicit Deeper(Evaluator& evaluator) : evaluator_(evaluator) {
    evaluator_.budget_.step();
    if (++evaluator_.depth_ > kCallDepth)
      evaluator_.budget_.fail("calls lie within one another too deep: does a macro call itself for ever?");
  }
  ~Deeper() { --evaluator_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Evaluator& evaluator_;
};

}  // namespace cairn::data::jinja
