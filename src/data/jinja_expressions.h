// Parses what stands inside {{ }} and after the names of tags.
#pragma once
#include "data/jinja_cursor.h"
#include "data/jinja_syntax.h"

namespace cairn::data::jinja {

enum class Choice { allowed, left };  // is `a if b` a choice, or does `if` belong to the tag around it

ExpressionPointer parse_expression(Cursor& cursor, Choice choice = Choice::allowed);
// One expression, or several with commas between them: a tuple.
ExpressionPointer parse_tuple(Cursor& cursor, Choice choice = Choice::allowed);
// `name(arguments) | name ...` applied to what a block captures.
ExpressionPointer parse_filters_of_captured(Cursor& cursor);
// A name, attribute or item that is called: what {% call %} needs.
ExpressionPointer parse_call(Cursor& cursor);

}  // namespace cairn::data::jinja
