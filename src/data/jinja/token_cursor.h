// A cursor over the tokens of a template, for the parsers.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/jinja/lexer.h"

namespace cairn::data::jinja {

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

}  // namespace cairn::data::jinja
