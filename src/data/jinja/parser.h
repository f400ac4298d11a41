// The parser: from template text to the syntax tree.
#pragma once
#include <string_view>

#include "data/jinja/syntax_tree.h"

namespace cairn::data::jinja {

struct ParsedTemplate {
  Block body;
  bool marks_generation = false;  // the template has a {% generation %} block
};

// Refuses invalid syntax, with the line and what was expected there.
ParsedTemplate parse_template(std::string_view text, TemplateBudget& budget);

}  // namespace cairn::data::jinja
