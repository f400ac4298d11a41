#include <initializer_list>

#include "data/jinja/parsing.h"

namespace cairn::data::jinja {
namespace {

class TemplateParser {
 public:
  explicit TemplateParser(TokenCursor cursor) : cursor_(std::move(cursor)) {}

  ParsedTemplate parse() {
    ParsedTemplate parsed;
    parsed.body = parse_block({});
    if (cursor_.now().kind != Token::Kind::end) fail_stray();
    parsed.marks_generation = marks_generation_;
    return parsed;
  }

 private:
  using Kind = Token::Kind;
  using Names = std::initializer_list<std::string_view>;

  [[noreturn]] void fail_stray() {
    cursor_.budget().at_line(cursor_.after().line);
    cursor_.budget().fail("{{% {} %}} stands here without its beginning", cursor_.after().value);
  }

  bool at_tag(Names names) const {
    if (cursor_.now().kind != Kind::tag_begin || cursor_.after().kind != Kind::name) return false;
    for (const std::string_view name : names)
      if (cursor_.after().value == name) return true;
    return false;
  }

  // Statements up to one of the named tags, which is not consumed; up to the end of the template where none is named.
  Block parse_block(Names ends) {
    const TokenCursor::Inside inside(cursor_);
    Block block;
    while (!at_tag(ends)) {
      const int line = cursor_.now().line;
      if (cursor_.now().kind == Kind::text) {
        block.push_back({line, Text{cursor_.take().value}});
      } else if (cursor_.now().kind == Kind::output_begin) {
        cursor_.take();
        block.push_back({line, Output{parse_tuple(cursor_)}});
        cursor_.expect(Kind::output_end, "}}");
      } else if (cursor_.now().kind == Kind::tag_begin) {
        if (at_tag({"endif", "else", "elif", "endfor", "endset", "endmacro", "endcall", "endgeneration", "endfilter", "endwith"})) {
          if (ends.size() == 0) fail_stray();
          fail_open(ends, cursor_.after().value);
        }
        cursor_.take();
        block.push_back(parse_tag());
        block.back().line = line;
      } else if (ends.size() > 0) {
        fail_open(ends, "the end of the template");
      } else {
        break;
      }
    }
    return block;
  }

  [[noreturn]] void fail_open(Names ends, std::string_view found) {
    cursor_.budget().at_line(cursor_.now().line);
    cursor_.budget().fail("found {} where {{% {} %}} is still missing", found, *(ends.end() - 1));
  }

  // The body of a tag, and the tag that ends it.
  Block parse_body(std::string_view end) {
    end_of_tag();
    Block body = parse_block({end});
    take_end(end);
    return body;
  }

  void take_end(std::string_view end) {
    cursor_.take();
    cursor_.expect_name(end);
    end_of_tag();
  }

  void end_of_tag() { cursor_.expect(Kind::tag_end, "%}"); }

  Statement parse_tag() {
    const std::string name = cursor_.expect_any_name("the name of a tag");
    if (name == "if") return {0, parse_if()};
    if (name == "for") return {0, parse_for()};
    if (name == "set") return parse_set();
    if (name == "macro") return {0, parse_macro()};
    if (name == "call") return {0, parse_call_block()};
    if (name == "filter") return {0, parse_filter_block()};
    if (name == "with") return {0, parse_with()};
    if (name == "generation") return {0, parse_generation()};
    if (name == "break" || name == "continue") return parse_jump(name);
    static const std::vector<std::string> known = {"if",   "for",        "set",   "macro",    "call", "filter",
                                                   "with", "generation", "break", "continue", "raw"};
    cursor_.budget().fail_unknown("tag", name, known);
  }

  If parse_if() {
    If made;
    while (true) {
      ExpressionPointer condition = parse_tuple(cursor_);
      end_of_tag();
      made.branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
      cursor_.take();
      const auto token = cursor_.take();
      const std::string_view next = token.value;
      if (next == "elif") continue;
      if (next == "else") {
        end_of_tag();
        made.otherwise = parse_block({"endif"});
        take_end("endif");
      } else {
        end_of_tag();
      }
      return made;
    }
  }

  For parse_for() {
    For made;
    made.target = parse_target(false);
    cursor_.expect_name("in");
    made.items = parse_tuple(cursor_, InlineIf::left);
    if (cursor_.takes_name("if")) made.condition = parse_expression(cursor_);
    made.recursive = cursor_.takes_name("recursive");
    end_of_tag();
    ++loops_;
    made.body = parse_block({"else", "endfor"});
    --loops_;
    cursor_.take();
    if (cursor_.takes_name("else")) {
      end_of_tag();
      made.otherwise = parse_block({"endfor"});
      cursor_.take();
    }
    cursor_.expect_name("endfor");
    end_of_tag();
    return made;
  }

  // name, name.attribute (of a namespace), or several with commas, in parentheses or not.
  Target parse_target(bool attributes) {
    Target first = parse_one_target(attributes);
    if (!cursor_.sees_sign(",")) return first;
    Target all;
    all.parts.push_back(std::move(first));
    while (cursor_.takes_sign(",")) {
      if (cursor_.now().kind != Kind::name && !cursor_.sees_sign("(")) break;
      if (cursor_.sees_name("in")) break;
      all.parts.push_back(parse_one_target(attributes));
    }
    return all;
  }

  Target parse_one_target(bool attributes) {
    const TokenCursor::Inside inside(cursor_);
    if (cursor_.takes_sign("(")) {
      Target inner = parse_target(attributes);
      cursor_.expect_sign(")");
      return inner;
    }
    Target target;
    target.name = cursor_.expect_any_name("a name to set");
    for (const char* word : {"true", "false", "none", "True", "False", "None", "and", "or", "not", "if", "else", "in", "is"})
      if (target.name == word) cursor_.budget().fail("\"{}\" cannot be given a value", word);
    if (attributes && cursor_.takes_sign(".")) target.attribute = cursor_.expect_any_name("the name of an attribute");
    return target;
  }

  Statement parse_set() {
    Target target = parse_target(true);
    if (cursor_.takes_sign("=")) {
      ExpressionPointer value = parse_tuple(cursor_);
      end_of_tag();
      return {0, Set{std::move(target), std::move(value)}};
    }
    ExpressionPointer filter = cursor_.takes_sign("|") ? parse_filters_of_captured(cursor_) : nullptr;
    return {0, SetBlock{std::move(target), std::move(filter), parse_body("endset")}};
  }

  std::vector<Parameter> parse_parameters() {
    std::vector<Parameter> parameters;
    cursor_.expect_sign("(");
    while (!cursor_.sees_sign(")")) {
      Parameter parameter{.name = cursor_.expect_any_name("the name of an argument")};
      if (cursor_.takes_sign("=")) {
        parameter.preset = parse_expression(cursor_);
      } else if (!parameters.empty() && parameters.back().preset) {
        cursor_.budget().fail("the argument \"{}\" has no default value but follows one that has", parameter.name);
      }
      parameters.push_back(std::move(parameter));
      if (!cursor_.takes_sign(",")) break;
    }
    cursor_.expect_sign(")");
    return parameters;
  }

  // A body that runs elsewhere (macro, call): break and continue do not reach loops around it.
  Block parse_apart(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = parse_body(end);
    loops_ = loops;
    return body;
  }

  DefineMacro parse_macro() {
    auto macro = std::make_shared<MacroBody>();
    macro->name = cursor_.expect_any_name("the name of a macro");
    macro->parameters = parse_parameters();
    macro->body = parse_apart("endmacro");
    return {std::move(macro)};
  }

  CallBlock parse_call_block() {
    auto caller = std::make_shared<MacroBody>();
    caller->name = "caller";
    if (cursor_.sees_sign("(")) caller->parameters = parse_parameters();
    ExpressionPointer call = parse_call(cursor_);
    caller->body = parse_apart("endcall");
    return {std::move(call), std::move(caller)};
  }

  FilterBlock parse_filter_block() {
    ExpressionPointer filter = parse_filters_of_captured(cursor_);
    return {std::move(filter), parse_apart("endfilter")};
  }

  With parse_with() {
    With made;
    while (cursor_.now().kind != Kind::tag_end) {
      Target target = parse_one_target(false);
      cursor_.expect_sign("=");
      made.values.emplace_back(std::move(target), parse_expression(cursor_));
      if (!cursor_.takes_sign(",")) break;
    }
    made.body = parse_body("endwith");
    return made;
  }

  Generation parse_generation() {
    marks_generation_ = true;
    return {parse_apart("endgeneration")};
  }

  Statement parse_jump(const std::string& name) {
    if (loops_ == 0) cursor_.budget().fail("{{% {} %}} stands outside a loop", name);
    end_of_tag();
    if (name == "break") return {0, Break{}};
    return {0, Continue{}};
  }

  TokenCursor cursor_;
  int loops_ = 0;
  bool marks_generation_ = false;
};

}  // namespace

ParsedTemplate parse_template(std::string_view text, TemplateBudget& budget) {
  return TemplateParser(TokenCursor(lex_template(text, budget), budget)).parse();
}

}  // namespace cairn::data::jinja
