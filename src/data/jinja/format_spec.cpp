#include "data/jinja/format_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "data/jinja/print.h"
#include "data/jinja/python_text.h"

namespace cairn::data::jinja {
namespace {

[[noreturn]] void refuse_type(const FormatSpec& spec, const Value& value, TemplateBudget& budget) {
  budget.fail("the format '{}' is not for a {}", spec.type == 0 ? std::string("") : std::string(1, spec.type), type_name(value));
}

// `head` (sign and prefix) and `body` at the asked width.
std::string padded(const std::string& head, const std::string& body, const FormatSpec& spec, char usual, TemplateBudget& budget) {
  const int64_t missing = std::max<int64_t>(0, spec.width - character_count(head) - character_count(body));
  budget.bytes(head.size() + body.size() + static_cast<size_t>(missing) * spec.fill.size());
  const auto fill = [&](int64_t count) {
    std::string made;
    for (int64_t i = 0; i < count; ++i) made += spec.fill;
    return made;
  };
  switch (spec.align != 0 ? spec.align : usual) {
    case '<':
      return head + body + fill(missing);
    case '^':
      return fill(missing / 2) + head + body + fill(missing - missing / 2);
    case '=':
      return head + fill(missing) + body;
    default:
      return fill(missing) + head + body;
  }
}

// Digits in groups, from the right.
std::string grouped(const std::string& digits, char separator, size_t each) {
  std::string made;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % each == 0) made += separator;
    made += digits[i];
  }
  return made;
}

std::string sign_of(bool negative, const FormatSpec& spec) {
  if (negative) return "-";
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

// A number's parts as `spec` pads them: after 0, padding goes between sign and digits.
std::string padded_number(const std::string& head, const std::string& body, FormatSpec spec, TemplateBudget& budget) {
  if (spec.zero && spec.align == 0) {
    if (spec.grouping != 0 && spec.width > 0)
      budget.fail("a format with zeros in front and '{}' between digits is not supported", spec.grouping);
    spec.align = '=';
    spec.fill = "0";
  }
  return padded(head, body, spec, '>', budget);
}

std::string format_integer(int64_t number, const FormatSpec& spec, const Value& value, TemplateBudget& budget) {
  const auto size = number < 0 ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
  std::string prefix, digits;
  switch (spec.type) {
    case 0:
    case 'd':
      digits = std::to_string(size);
      break;
    case 'b':
      digits = fmt::format("{:b}", size), prefix = "0b";
      break;
    case 'o':
      digits = fmt::format("{:o}", size), prefix = "0o";
      break;
    case 'x':
      digits = fmt::format("{:x}", size), prefix = "0x";
      break;
    case 'X':
      digits = fmt::format("{:X}", size), prefix = "0X";
      break;
    default:
      refuse_type(spec, value, budget);
  }
  if (spec.precision) budget.fail("a whole number has no precision: write its format with 'f'");
  if (spec.grouping == ',' && !prefix.empty()) budget.fail("',' is for decimal numbers");
  if (spec.grouping != 0) digits = grouped(digits, spec.grouping, prefix.empty() ? 3 : 4);
  return padded_number(sign_of(number < 0, spec) + (spec.alternate ? prefix : ""), digits, spec, budget);
}

// %g with `digits` digits; with `point`, the form that float() without a type has: at least one digit after the point.
std::string shortest_form(double size, int64_t digits, bool point) {
  digits = std::max<int64_t>(digits, 1);
  std::string text = fmt::format("{:.{}e}", size, digits - 1);
  const size_t at = text.find('e');
  const int exponent = std::atoi(text.c_str() + at + 1);
  const auto trimmed = [](std::string number) {
    if (number.find('.') == std::string::npos) return number;
    number.erase(number.find_last_not_of('0') + 1);
    if (number.ends_with('.')) number.pop_back();
    return number;
  };
  if (exponent < -4 || exponent + 1 > digits - (point ? 1 : 0)) return trimmed(text.substr(0, at)) + text.substr(at);
  text = trimmed(fmt::format("{:.{}f}", size, std::max<int64_t>(digits - 1 - exponent, 0)));
  return point && text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string format_number(double number, const FormatSpec& spec, const Value& value, TemplateBudget& budget) {
  const double size = std::abs(number) * (spec.type == '%' ? 100 : 1);
  const int64_t precision = spec.precision.value_or(6);
  if (spec.alternate) budget.fail("'#' in the format of a number with a point is not supported");
  budget.bytes(static_cast<size_t>(precision) + 400);
  std::string body;
  if (!std::isfinite(size)) {
    body = std::isnan(size) ? "nan" : "inf";
  } else if (spec.type == 0) {
    body = spec.precision ? shortest_form(size, precision, true) : to_text(size, budget);
  } else if (spec.type == 'f' || spec.type == 'F' || spec.type == '%') {
    body = fmt::format("{:.{}f}", size, precision);
  } else if (spec.type == 'e' || spec.type == 'E') {
    body = fmt::format("{:.{}e}", size, precision);
  } else if (spec.type == 'g' || spec.type == 'G') {
    body = shortest_form(size, precision, false);
  } else {
    refuse_type(spec, value, budget);
  }
  if (spec.grouping != 0) {
    const size_t whole = std::min(body.find_first_not_of("0123456789"), body.size());
    body = grouped(body.substr(0, whole), spec.grouping, 3) + body.substr(whole);
  }
  if (spec.type == 'E' || spec.type == 'F' || spec.type == 'G') body = upper(body);
  if (spec.type == '%') body += '%';
  return padded_number(sign_of(std::signbit(number) && !std::isnan(number), spec), body, spec, budget);
}

std::string format_string(const Value& value, FormatSpec spec, TemplateBudget& budget) {
  if (spec.type != 0 && spec.type != 's') refuse_type(spec, value, budget);
  if (spec.align == '=' || spec.sign != '-' || spec.alternate || spec.grouping != 0)
    budget.fail("a string has no sign and no digits to format");
  if (spec.zero && spec.align == 0) spec.fill = "0";
  const std::string& text = value.text();
  budget.step(static_cast<int64_t>(text.size()) / 8);
  return padded("", spec.precision ? text.substr(0, byte_of_character(text, *spec.precision)) : text, spec, '<', budget);
}

}  // namespace

std::optional<int64_t> read_width(std::string_view text, size_t& at, TemplateBudget& budget) {
  if (at >= text.size() || text[at] < '0' || text[at] > '9') return std::nullopt;
  int64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = 10 * number + (text[at] - '0');
    if (number > kWidthMax) budget.fail("a format has a width or precision of more than {}", kWidthMax);
  }
  return number;
}

FormatSpec parse_format_spec(std::string_view text, TemplateBudget& budget) {
  constexpr std::string_view kAligns = "<>^=";
  const auto among = [](std::string_view some, char one) { return one != 0 && some.find(one) != std::string_view::npos; };
  size_t at = 0;
  const auto now = [&] { return at < text.size() ? text[at] : '\0'; };
  FormatSpec spec;
  bool fill_given = false;
  const size_t first = byte_of_character(text, 1);
  if (first < text.size() && among(kAligns, text[first])) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    fill_given = true;
    at = first + 1;
  } else if (among(kAligns, now())) {
    spec.align = text[at++];
  }
  if (among("-+ ", now())) spec.sign = text[at++];
  if (now() == '#') spec.alternate = true, ++at;
  if (now() == '0') {
    spec.zero = true, ++at;
    if (spec.align != 0 && !fill_given) spec.fill = "0";  // "<05": aligned, with zeros
  }
  spec.width = read_width(text, at, budget).value_or(0);
  if (among(",_", now())) spec.grouping = text[at++];
  if (now() == '.') {
    ++at;
    spec.precision = read_width(text, at, budget);
    if (!spec.precision) budget.fail("the format '{}' has a point without digits after it", text.substr(0, 100));
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) budget.fail("the format '{}' cannot be read", text.substr(0, 100));
  return spec;
}

std::string format_value(const Value& value, const FormatSpec& spec, TemplateBudget& budget) {
  if (spec == FormatSpec{}) return to_text(value, budget);
  if (value.is_text()) return format_string(value, spec, budget);
  if (value.is_integer() && (spec.type == 0 || std::string_view("dboxX").find(spec.type) != std::string_view::npos))
    return format_integer(value.integer(), spec, value, budget);
  if (value.is_number()) return format_number(value.number(), spec, value, budget);
  budget.fail("a {} takes no format", type_name(value));
}

}  // namespace cairn::data::jinja
