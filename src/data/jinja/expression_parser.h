// Parses expressions: the content of {{ }} and the arguments of tags.
#pragma once
#include "data/jinja/syntax_tree.h"
#include "data/jinja/token_cursor.h"

namespace cairn::data::jinja {

enum class InlineIf { allowed, left };  // whether `if` after an expression is a conditional expression, or belongs to the tag around it

ExpressionPointer parse_expression(TokenCursor& cursor, InlineIf choice = InlineIf::allowed);
// One expression, or a tuple of several separated by commas.
ExpressionPointer parse_tuple(TokenCursor& cursor, InlineIf choice = InlineIf::allowed);
// `name(arguments) | name ...`, applied to the text that a block captures.
ExpressionPointer parse_filters_of_captured(TokenCursor& cursor);
// A call, as {% call %} needs it.
ExpressionPointer parse_call(TokenCursor& cursor);

}  // namespace cairn::data::jinja
