// Filters that make texts, or numbers of texts.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "data/jinja/filter_call.h"
#include "data/jinja/format_text.h"
#include "data/jinja/python_text.h"
#include "data/tokenizer/characters.h"

namespace cairn::data::jinja {
namespace {

// 2, 8 or 16 for a number that begins with 0b, 0o or 0x, else 0.
int prefix_base(std::string_view digits) {
  if (digits.size() < 2 || digits[0] != '0') return 0;
  const char letter = static_cast<char>(digits[1] | 0x20);
  return letter == 'b' ? 2 : letter == 'o' ? 8 : letter == 'x' ? 16 : 0;
}

// Removes the underscores of Python's numbers: one between two digits, or after the prefix. Refuses others.
bool drop_underscores(std::string_view digits, bool after_prefix, std::string& into) {
  for (size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] != '_') {
      into += digits[i];
      continue;
    }
    if ((i == 0 && !after_prefix) || i + 1 == digits.size() || digits[i + 1] == '_') return false;
  }
  return true;
}

// int(text, base): a sign, a prefix that fits the base, digits. Base 0 takes any prefix, and no zeros in front without one.
std::optional<int64_t> whole_number(std::string_view text, int base) {
  text = strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const int prefix = prefix_base(text);
  const bool prefixed = prefix != 0 && (base == 0 || base == prefix);
  if (prefixed) text.remove_prefix(2);
  std::string digits(negative ? "-" : "");
  if (!drop_underscores(text, prefixed, digits) || digits.size() == static_cast<size_t>(negative) || text[0] == '-') return std::nullopt;
  if (base == 0 && !prefixed && text[0] == '0' && text.find_first_not_of("0_") != std::string_view::npos) return std::nullopt;
  int64_t number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, prefixed ? prefix : base == 0 ? 10 : base);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::optional<double> real_number(const Value& value) {
  if (value.is_number()) return value.number();
  if (!value.is_text()) return std::nullopt;
  std::string plain;
  if (!drop_underscores(strip(value.text()), false, plain)) return std::nullopt;
  double number = 0;
  const char* begin = plain.data() + (plain.starts_with('+') && !plain.starts_with("+-"));
  const auto read = std::from_chars(begin, plain.data() + plain.size(), number);
  if (plain.empty() || read.ec != std::errc() || read.ptr != plain.data() + plain.size()) return std::nullopt;
  return number;
}

void refuse_undefined_number(FilterCall& c) {
  if (c.input.is_undefined()) c.budget.fail("{} is undefined and no number", c.input.undefined_name());
}

}  // namespace

Value integer_of(FilterCall& c) {
  const Value otherwise = c.take.take("default").value_or(Value(int64_t{0}));
  const int64_t base = c.take.integer_or("base", 10);
  const bool known_base = base == 0 || (base >= 2 && base <= 36);  // Python's int fails for others, and Jinja then tries float
  refuse_undefined_number(c);
  if (c.input.is_integer()) return c.input.integer();
  if (c.input.is_text() && known_base)
    if (const auto number = whole_number(c.input.text(), static_cast<int>(base))) return *number;
  const auto number = real_number(c.input);
  if (!number || std::isnan(*number)) return otherwise;
  if (!(std::abs(*number) < 9.2e18)) c.budget.fail("filter 'int' gives a whole number of more than 64 bits");
  return static_cast<int64_t>(*number);
}

Value float_of(FilterCall& c) {
  const Value otherwise = c.take.take("default").value_or(Value(0.0));
  refuse_undefined_number(c);
  const auto number = real_number(c.input);
  return number ? Value(*number) : otherwise;
}

Value centered(FilterCall& c) {
  const int64_t width = c.take.integer_or("width", 80);
  if (width > kWidthMax) c.budget.fail("filter 'center': 'width' is {}, and at most {}", width, kWidthMax);
  return c.give(justified(c.text(), width, " ", Ends{}));
}

Value truncated(FilterCall& c) {
  const int64_t length = c.take.integer_or("length", 255);
  const bool cut_words = c.take.flag("killwords");
  const std::string end = c.take.text_or("end", "...");
  const int64_t leeway = c.take.integer_or("leeway", 5);
  const std::string text = c.text();
  const int64_t end_length = character_count(end);
  if (length < end_length || leeway < 0)
    c.budget.fail("filter 'truncate': 'length' must be at least that of 'end', and 'leeway' at least 0");
  c.budget.step(static_cast<int64_t>(text.size()) / 8);
  if (character_count(text) <= length || character_count(text) - leeway <= length) return c.give(text);
  const std::string_view kept = std::string_view(text).substr(0, byte_of_character(text, length - end_length));
  const size_t space = cut_words ? std::string_view::npos : kept.rfind(' ');
  return c.give(std::string(kept.substr(0, space)) + end);
}

Value formatted(FilterCall& c) {
  if (!c.arguments.positional.empty() && !c.arguments.named.empty()) c.budget.fail("filter 'format' takes values by position or by name");
  if (c.arguments.named.empty()) return format_percent(c.text(), make_list(c.arguments.positional, c.budget, List::Form::tuple), c.budget);
  std::vector<Entry> entries;
  for (const auto& [name, value] : c.arguments.named) entries.emplace_back(make_text(name, c.budget), value);
  return format_percent(c.text(), make_dict(std::move(entries), c.budget), c.budget);
}

Value word_count(FilterCall& c) {
  const std::string text = c.text();
  int64_t count = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const bool word = (character.kinds & data::Kind::word) != 0;
    count += word && !inside;
    inside = word;
    at += character.bytes;
  }
  return count;
}

}  // namespace cairn::data::jinja
