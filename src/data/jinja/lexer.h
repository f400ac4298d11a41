// The lexer: splits a template into text and the tokens of its tags, with Jinja's whitespace control.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/jinja/budget.h"

namespace cairn::data::jinja {

struct Token {
  enum class Kind { text, output_begin, output_end, tag_begin, tag_end, name, string, integer, number, sign, end };
  Kind kind = Kind::end;
  std::string value;  // the text, the name, the string without quotes and escapes, the digits, the sign
  int line = 1;

  bool is(Kind wanted, std::string_view text) const { return kind == wanted && value == text; }
};

// trim_blocks and lstrip_blocks are on, as transformers sets them; one line break at the very end is dropped; \r\n is \n.
std::vector<Token> lex_template(std::string_view text, TemplateBudget& budget);

}  // namespace cairn::data::jinja
