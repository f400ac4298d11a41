// The syntax tree of a template, and the parser that makes it.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/jinja/value.h"

namespace cairn::data::jinja {

enum class Operator {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  equal,
  unequal,
  below,
  at_most,
  above,
  at_least,
  in,
  not_in
};

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

// The arguments of a call, filter or test, not yet evaluated.
struct Arguments {
  std::vector<ExpressionPointer> positional;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
};

// One node. `parts` are its operands in the order in which they are written; a chain a + b - c is one node.
struct Expression {
  enum class Kind {
    constant,   // constant
    name,       // name
    list,       // parts
    tuple,      // parts
    dict,       // parts: key, value, key, value
    attribute,  // parts[0].name
    item,       // parts[0][parts[1]]
    slice,      // parts[0][parts[1]:parts[2]:parts[3]], any of which may be missing
    call,       // parts[0](arguments)
    filter,     // parts[0] | name(arguments)
    test,       // parts[0] is name(arguments)
    negative,   // -parts[0]
    positive,   // +parts[0]
    negation,   // not parts[0]
    chain,      // parts[0] operators[0] parts[1] operators[1] ..., from the left
    compare,    // the same, true where every pair of neighbours is
    join,       // parts[0] ~ parts[1] ~ ...
    all,        // and
    any,        // or
    choice,     // parts[0] if parts[1] else parts[2], which may be missing
    captured,   // the text that a {% filter %} or {% set x | f %} block has made
  };
  Kind kind = Kind::constant;
  int line = 1;
  int depth = 1;  // of the subtree
  std::string name = {};
  Value constant = {};
  std::vector<ExpressionPointer> parts = {};
  std::vector<Operator> operators = {};
  Arguments arguments = {};
};

// The target of an assignment: a name, an attribute of a namespace, or a tuple of targets that unpacks the value.
struct Target {
  std::string name = {};
  std::string attribute = {};      // of the namespace `name`
  std::vector<Target> parts = {};  // if not empty, the other fields are unused
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPointer preset = {};
};
// The body of a macro, or what a {% call %} block hands to one.
struct MacroBody {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
};

struct Text {
  std::string text;
};
struct Output {
  ExpressionPointer value;
};
struct If {
  std::vector<std::pair<ExpressionPointer, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPointer items;
  ExpressionPointer condition;  // may be missing
  Block body;
  Block otherwise;
  bool recursive = false;
};
struct Set {
  Target target;
  ExpressionPointer value;
};
struct SetBlock {
  Target target;
  ExpressionPointer filter;  // of `captured`; may be missing
  Block body;
};
struct FilterBlock {
  ExpressionPointer filter;
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPointer>> values;
  Block body;
};
struct DefineMacro {
  std::shared_ptr<const MacroBody> macro;
};
struct CallBlock {
  ExpressionPointer call;
  std::shared_ptr<const MacroBody> caller;
};
struct Generation {
  Block body;
};  // marks what the assistant said, as in transformers
struct Break {};
struct Continue {};

struct Statement {
  int line = 1;
  std::variant<Text, Output, If, For, Set, SetBlock, FilterBlock, With, DefineMacro, CallBlock, Generation, Break, Continue> what;
};

struct ParsedTemplate {
  Block body;
  bool marks_generation = false;  // the template has a {% generation %} block
};

// The parser. Refuses invalid syntax, with the line and what was expected there.
ParsedTemplate parse_template(std::string_view text, TemplateBudget& budget);

}  // namespace cairn::data::jinja
