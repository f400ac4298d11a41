// What the lexer and the two parsers share: tokens, a cursor over them, and the parser of expressions.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/jinja/budget.h"
#include "data/jinja/syntax_tree.h"

namespace cairn::data::jinja {

struct Token {
  enum class Kind { text, output_begin, output_end, tag_begin, tag_end, name, string, integer, number, sign, end };
  Kind kind = Kind::end;
  std::string value;  // the text, the name, the string without quotes and escapes, the digits, the sign
  int line = 1;

  bool is(Kind wanted, std::string_view text) const { return kind == wanted && value == text; }
};

// The lexer: splits a template into text and the tokens of its tags, with Jinja's whitespace control. trim_blocks and lstrip_blocks are on,
// as transformers sets them; one line break at the very end is dropped; \r\n is \n.
std::vector<Token> lex_template(std::string_view text, TemplateBudget& budget);

// A cursor over the tokens of a template.
class TokenCursor {
 public:
  TokenCursor(std::vector<Token> tokens, TemplateBudget& budget) : tokens_(std::move(tokens)), budget_(budget) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  TemplateBudget& budget() { return budget_; }

  Token take() {
    budget_.at_line(now().line);
    Token token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool sees_sign(std::string_view sign) const { return now().is(Token::Kind::sign, sign); }
  bool sees_name(std::string_view name) const { return now().is(Token::Kind::name, name); }
  bool takes_sign(std::string_view sign) { return sees_sign(sign) && (take(), true); }
  bool takes_name(std::string_view name) { return sees_name(name) && (take(), true); }

  void expect_sign(std::string_view sign) {
    if (!takes_sign(sign)) fail_expected(sign);
  }
  void expect_name(std::string_view name) {
    if (!takes_name(name)) fail_expected(name);
  }
  void expect(Token::Kind kind, std::string_view what) {
    if (now().kind != kind) fail_expected(what);
    take();
  }
  std::string expect_any_name(std::string_view what) {
    if (now().kind != Token::Kind::name) fail_expected(what);
    return take().value;
  }

  [[noreturn]] void fail_expected(std::string_view what);

  // Held while a nested construct is parsed; bounds the depth.
  class Inside {
   public:
    explicit Inside(TokenCursor& cursor) : cursor_(cursor) {
      if (++cursor_.depth_ > kSyntaxDepth) {
        cursor_.budget_.at_line(cursor_.now().line);
        cursor_.budget_.fail("expressions or tags lie within one another more than {} deep", kSyntaxDepth);
      }
    }
    ~Inside() { --cursor_.depth_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    TokenCursor& cursor_;
  };

 private:
  std::vector<Token> tokens_;
  TemplateBudget& budget_;
  size_t at_ = 0;
  int depth_ = 0;
};

// The parser of expressions: the content of {{ }} and the arguments of tags.
enum class InlineIf { allowed, left };  // whether `if` after an expression is a conditional expression, or belongs to the tag around it

ExpressionPointer parse_expression(TokenCursor& cursor, InlineIf choice = InlineIf::allowed);
// One expression, or a tuple of several separated by commas.
ExpressionPointer parse_tuple(TokenCursor& cursor, InlineIf choice = InlineIf::allowed);
// `name(arguments) | name ...`, applied to the text that a block captures.
ExpressionPointer parse_filters_of_captured(TokenCursor& cursor);
// A call, as {% call %} needs it.
ExpressionPointer parse_call(TokenCursor& cursor);

}  // namespace cairn::data::jinja
