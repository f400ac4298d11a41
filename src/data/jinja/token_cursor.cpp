#include "data/jinja/parsing.h"

namespace cairn::data::jinja {

void TokenCursor::fail_expected(std::string_view what) {
  budget_.at_line(now().line);
  std::string found;
  switch (now().kind) {
    case Token::Kind::end:
      found = "the end of the template";
      break;
    case Token::Kind::tag_end:
    case Token::Kind::output_end:
      found = "the end of the tag";
      break;
    case Token::Kind::text:
      found = "text";
      break;
    case Token::Kind::tag_begin:
    case Token::Kind::output_begin:
      found = "another tag";
      break;
    default:
      found = '"' + now().value.substr(0, 40) + '"';
  }
  budget_.fail("expected {}, found {}", what, found);
}

}  // namespace cairn::data::jinja
