#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "data/jinja/parsing.h"

namespace cairn::data::jinja {

namespace {

using Kind = Expression::Kind;
using Sign = std::pair<std::string_view, Operator>;

constexpr Sign kSums[] = {{"+", Operator::add}, {"-", Operator::subtract}};
constexpr Sign kProducts[] = {{"*", Operator::multiply}, {"/", Operator::divide}, {"//", Operator::floor_divide}, {"%", Operator::modulo}};
constexpr Sign kPowers[] = {{"**", Operator::power}};
constexpr Sign kComparisons[] = {{"==", Operator::equal},   {"!=", Operator::unequal}, {"<", Operator::below},
                                 {"<=", Operator::at_most}, {">", Operator::above},    {">=", Operator::at_least}};

// The grammar of Jinja's expressions, weakest binding first.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor& cursor) : cursor_(cursor) {}

  ExpressionPointer parse_choice() {
    const TokenCursor::Inside inside(cursor_);
    ExpressionPointer value = parse_any();
    while (cursor_.takes_name("if")) {
      ExpressionPointer condition = parse_any();
      ExpressionPointer otherwise = cursor_.takes_name("else") ? parse_choice() : nullptr;
      value = node(Kind::choice, std::move(value), std::move(condition), std::move(otherwise));
    }
    return value;
  }

  ExpressionPointer parse_any() {
    const TokenCursor::Inside inside(cursor_);
    return parse_words("or", Kind::any, &ExpressionParser::parse_all);
  }

  ExpressionPointer parse_primary_with_postfix() { return parse_postfix(parse_primary()); }

  ExpressionPointer parse_filter(ExpressionPointer input) {
    auto filter = node(Kind::filter, std::move(input));
    filter->name = cursor_.expect_any_name("the name of a filter");
    if (cursor_.sees_sign("(")) filter->arguments = parse_arguments();
    return checked(std::move(filter));
  }

 private:
  template <typename... Parts>
  ExpressionPointer node(Kind kind, Parts... parts) {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = cursor_.budget().line();
    (made->parts.push_back(std::move(parts)), ...);
    return checked(std::move(made));
  }

  // Sets the depth of a node whose parts are all there.
  ExpressionPointer checked(ExpressionPointer made) {
    int depth = 0;
    const auto see = [&](const ExpressionPointer& part) { depth = std::max(depth, part ? part->depth : 0); };
    for (const ExpressionPointer& part : made->parts) see(part);
    for (const ExpressionPointer& part : made->arguments.positional) see(part);
    for (const auto& [_, part] : made->arguments.named) see(part);
    if (depth >= 2 * kSyntaxDepth) cursor_.budget().fail("an expression is more than {} deep", 2 * kSyntaxDepth);
    made->depth = depth + 1;
    return made;
  }

  using Parse = ExpressionPointer (ExpressionParser::*)();

  ExpressionPointer parse_words(std::string_view word, Kind kind, Parse operand) {
    ExpressionPointer first = (this->*operand)();
    if (!cursor_.sees_name(word)) return first;
    auto made = node(kind, std::move(first));
    while (cursor_.takes_name(word)) made->parts.push_back((this->*operand)());
    return checked(std::move(made));
  }

  ExpressionPointer parse_all() { return parse_words("and", Kind::all, &ExpressionParser::parse_not); }

  ExpressionPointer parse_not() {
    const TokenCursor::Inside inside(cursor_);
    if (cursor_.takes_name("not")) return node(Kind::negation, parse_not());
    return parse_compare();
  }

  std::optional<Operator> take_operator(std::span<const Sign> signs) {
    for (const auto& [sign, meaning] : signs)
      if (cursor_.takes_sign(sign)) return meaning;
    return std::nullopt;
  }

  std::optional<Operator> take_comparison() {
    if (const auto sign = take_operator(kComparisons)) return sign;
    if (cursor_.takes_name("in")) return Operator::in;
    if (!cursor_.sees_name("not") || !cursor_.after().is(Token::Kind::name, "in")) return std::nullopt;
    cursor_.take();
    cursor_.take();
    return Operator::not_in;
  }

  ExpressionPointer parse_compare() {
    ExpressionPointer first = parse_sum();
    std::optional<Operator> next = take_comparison();
    if (!next) return first;
    auto made = node(Kind::compare, std::move(first));
    for (; next; next = take_comparison()) {
      made->operators.push_back(*next);
      made->parts.push_back(parse_sum());
    }
    return checked(std::move(made));
  }

  ExpressionPointer parse_chain(std::span<const Sign> signs, Parse operand) {
    ExpressionPointer first = (this->*operand)();
    std::optional<Operator> next = take_operator(signs);
    if (!next) return first;
    auto made = node(Kind::chain, std::move(first));
    for (; next; next = take_operator(signs)) {
      made->operators.push_back(*next);
      made->parts.push_back((this->*operand)());
    }
    return checked(std::move(made));
  }

  ExpressionPointer parse_sum() { return parse_chain(kSums, &ExpressionParser::parse_join); }

  ExpressionPointer parse_join() {
    ExpressionPointer first = parse_product();
    if (!cursor_.sees_sign("~")) return first;
    auto made = node(Kind::join, std::move(first));
    while (cursor_.takes_sign("~")) made->parts.push_back(parse_product());
    return checked(std::move(made));
  }

  ExpressionPointer parse_product() { return parse_chain(kProducts, &ExpressionParser::parse_power); }
  ExpressionPointer parse_power() { return parse_chain(kPowers, &ExpressionParser::parse_unary); }

  ExpressionPointer parse_unary() { return parse_filters(parse_signed()); }

  ExpressionPointer parse_signed() {
    const TokenCursor::Inside inside(cursor_);
    if (cursor_.takes_sign("-")) return parse_postfix(node(Kind::negative, parse_signed()));
    if (cursor_.takes_sign("+")) return parse_postfix(node(Kind::positive, parse_signed()));
    return parse_postfix(parse_primary());
  }

  ExpressionPointer parse_filters(ExpressionPointer value) {
    while (true) {
      if (cursor_.takes_sign("|")) {
        value = parse_filter(std::move(value));
      } else if (cursor_.takes_name("is")) {
        value = parse_test(std::move(value));
      } else if (cursor_.sees_sign("(")) {
        value = parse_arguments_of(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPointer parse_test(ExpressionPointer input) {
    const bool negated = cursor_.takes_name("not");
    auto test = node(Kind::test, std::move(input));
    test->name = cursor_.expect_any_name("the name of a test");
    if (cursor_.sees_sign("(")) {
      test->arguments = parse_arguments();
    } else if (begins_operand()) {
      if (cursor_.sees_name("is")) cursor_.budget().fail("tests with \"is\" cannot follow one another");
      test->arguments.positional.push_back(parse_primary_with_postfix());
    }
    test = checked(std::move(test));
    return negated ? node(Kind::negation, std::move(test)) : std::move(test);
  }

  // Does `x is divisibleby 3` go on with the argument of its test?
  bool begins_operand() const {
    switch (cursor_.now().kind) {
      case Token::Kind::string:
      case Token::Kind::integer:
      case Token::Kind::number:
        return true;
      case Token::Kind::name:
        return !cursor_.sees_name("else") && !cursor_.sees_name("or") && !cursor_.sees_name("and");
      default:
        return cursor_.sees_sign("[") || cursor_.sees_sign("{");
    }
  }

  ExpressionPointer parse_postfix(ExpressionPointer value) {
    while (true) {
      if (cursor_.takes_sign(".")) {
        value = parse_attribute(std::move(value));
      } else if (cursor_.takes_sign("[")) {
        value = parse_item(std::move(value));
      } else if (cursor_.sees_sign("(")) {
        value = parse_arguments_of(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPointer parse_attribute(ExpressionPointer of) {
    if (cursor_.now().kind == Token::Kind::integer) return node(Kind::item, std::move(of), parse_primary());
    auto made = node(Kind::attribute, std::move(of));
    made->name = cursor_.expect_any_name("the name of an attribute");
    return made;
  }

  ExpressionPointer parse_item(ExpressionPointer of) {
    ExpressionPointer first = cursor_.sees_sign(":") ? nullptr : parse_choice();
    if (cursor_.takes_sign("]")) return node(Kind::item, std::move(of), std::move(first));
    cursor_.expect_sign(":");
    const auto bound = [&] { return cursor_.sees_sign(":") || cursor_.sees_sign("]") ? nullptr : parse_choice(); };
    ExpressionPointer last = bound();
    ExpressionPointer stride = cursor_.takes_sign(":") ? bound() : nullptr;
    cursor_.expect_sign("]");
    return node(Kind::slice, std::move(of), std::move(first), std::move(last), std::move(stride));
  }

  ExpressionPointer parse_arguments_of(ExpressionPointer called) {
    auto made = node(Kind::call, std::move(called));
    made->arguments = parse_arguments();
    return checked(std::move(made));
  }

  Arguments parse_arguments() {
    Arguments arguments;
    cursor_.expect_sign("(");
    while (!cursor_.sees_sign(")")) {
      if (cursor_.sees_sign("*") || cursor_.sees_sign("**")) cursor_.budget().fail("*arguments and **arguments are not supported");
      if (cursor_.now().kind == Token::Kind::name && cursor_.after().is(Token::Kind::sign, "=")) {
        std::string name = cursor_.take().value;
        cursor_.take();
        arguments.named.emplace_back(std::move(name), parse_choice());
      } else {
        if (!arguments.named.empty()) cursor_.budget().fail("an argument without a name comes after \"{}=\"", arguments.named.back().first);
        arguments.positional.push_back(parse_choice());
      }
      if (!cursor_.takes_sign(",")) break;
    }
    cursor_.expect_sign(")");
    return arguments;
  }

  ExpressionPointer constant(Value value) {
    auto made = node(Kind::constant);
    made->constant = std::move(value);
    return made;
  }

  ExpressionPointer parse_primary() {
    const TokenCursor::Inside inside(cursor_);
    switch (cursor_.now().kind) {
      case Token::Kind::name:
        return parse_name();
      case Token::Kind::string: {
        std::string text;
        while (cursor_.now().kind == Token::Kind::string) text += cursor_.take().value;
        return constant(std::move(text));
      }
      case Token::Kind::integer:
        return constant(parse_number<int64_t>());
      case Token::Kind::number:
        return constant(parse_number<double>());
      default:
        break;
    }
    if (cursor_.takes_sign("(")) return parse_parentheses();
    if (cursor_.takes_sign("[")) return parse_parts(Kind::list, "]");
    if (cursor_.takes_sign("{")) return parse_dict();
    cursor_.fail_expected("an expression");
  }

  ExpressionPointer parse_name() {
    const std::string name = cursor_.take().value;
    if (name == "true" || name == "True") return constant(true);
    if (name == "false" || name == "False") return constant(false);
    if (name == "none" || name == "None") return constant(None{});
    for (const char* word : {"and", "or", "not", "if", "else", "elif", "in", "is"})
      if (name == word) cursor_.budget().fail("expected an expression, found \"{}\"", name);
    auto made = node(Kind::name);
    made->name = name;
    return made;
  }

  template <typename Number>
  Number parse_number() {
    const std::string digits = cursor_.take().value;
    Number number{};
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) cursor_.budget().fail("the number {} is too large", digits);
    return number;
  }

  ExpressionPointer parse_parentheses() {
    if (cursor_.takes_sign(")")) return node(Kind::tuple);
    ExpressionPointer first = parse_choice();
    if (cursor_.takes_sign(")")) return first;
    cursor_.expect_sign(",");
    auto made = parse_parts(Kind::tuple, ")");
    made->parts.insert(made->parts.begin(), std::move(first));
    return checked(std::move(made));
  }

  ExpressionPointer parse_parts(Kind kind, std::string_view end) {
    auto made = node(kind);
    while (!cursor_.sees_sign(end)) {
      made->parts.push_back(parse_choice());
      if (!cursor_.takes_sign(",")) break;
    }
    cursor_.expect_sign(end);
    return checked(std::move(made));
  }

  ExpressionPointer parse_dict() {
    auto made = node(Kind::dict);
    while (!cursor_.sees_sign("}")) {
      made->parts.push_back(parse_choice());
      cursor_.expect_sign(":");
      made->parts.push_back(parse_choice());
      if (!cursor_.takes_sign(",")) break;
    }
    cursor_.expect_sign("}");
    return checked(std::move(made));
  }

  TokenCursor& cursor_;
};

bool ends_a_tuple(const TokenCursor& cursor) {
  return cursor.now().kind == Token::Kind::tag_end || cursor.now().kind == Token::Kind::output_end || cursor.sees_sign("=") ||
         cursor.sees_name("if") || cursor.sees_name("recursive");
}

}  // namespace

ExpressionPointer parse_expression(TokenCursor& cursor, InlineIf choice) {
  ExpressionParser parser(cursor);
  return choice == InlineIf::allowed ? parser.parse_choice() : parser.parse_any();
}

ExpressionPointer parse_tuple(TokenCursor& cursor, InlineIf choice) {
  ExpressionPointer first = parse_expression(cursor, choice);
  if (!cursor.sees_sign(",")) return first;
  auto tuple = std::make_unique<Expression>();
  tuple->kind = Kind::tuple;
  tuple->line = first->line;
  tuple->depth = first->depth + 1;
  tuple->parts.push_back(std::move(first));
  while (cursor.takes_sign(",") && !ends_a_tuple(cursor)) {
    tuple->parts.push_back(parse_expression(cursor, choice));
    tuple->depth = std::max(tuple->depth, tuple->parts.back()->depth + 1);
  }
  return tuple;
}

ExpressionPointer parse_filters_of_captured(TokenCursor& cursor) {
  auto value = std::make_unique<Expression>();
  value->kind = Kind::captured;
  value->line = cursor.now().line;
  do value = ExpressionParser(cursor).parse_filter(std::move(value));
  while (cursor.takes_sign("|"));
  return value;
}

ExpressionPointer parse_call(TokenCursor& cursor) {
  ExpressionPointer call = ExpressionParser(cursor).parse_primary_with_postfix();
  if (call->kind != Kind::call) cursor.fail_expected("a macro that is called");
  return call;
}

}  // namespace cairn::data::jinja
