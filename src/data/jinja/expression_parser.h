// Parses what stands inside {{ }} and after the names of tags.
#pragma once
#include "data/jinja/syntax_tree.h"
#include "data/jinja/token_cursor.h"

namespace cairn::data::jinja {

enum class InlineIf { allowed, left };  // is `a if b` a choice, or does `if` belong to the tag around it

ExpressionPointer parse_expression(Cursor& cursor, InlineIf choice = InlineIf::allowed);
// One expression, or several with commas between them: a tuple.
ExpressionPointer parse_tuple(Cursor& cursor, InlineIf choice = InlineIf::allowed);
// `name(arguments) | name ...` applied to what a block captures.
ExpressionPointer parse_filters_of_captured(Cursor& cursor);
// A name, attribute or item that is called: what {% call %} needs.
ExpressionPointer parse_call(Cursor& cursor);

}  // namespace cairn::data::jinja
