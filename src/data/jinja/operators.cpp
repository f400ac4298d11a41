#include "data/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "data/jinja/format_text.h"
#include "data/jinja/print.h"
#include "data/jinja/python_text.h"

namespace cairn::data::jinja {
namespace {

[[noreturn]] void refuse(std::string_view sign, const Value& left, const Value& right, TemplateBudget& budget) {
  for (const Value* value : {&left, &right})
    if (value->is_undefined()) budget.fail("{} is undefined and cannot be used with {}", value->undefined_name(), sign);
  std::string advice;
  if (sign == "+" && (left.is_text() || right.is_text())) advice = " (\"~\" joins anything as text)";
  budget.fail("{} cannot stand between {} and {}{}", sign, type_name(left), type_name(right), advice);
}

[[noreturn]] void refuse_large(std::string_view sign, TemplateBudget& budget) {
  budget.fail("{} gives a whole number of more than 64 bits", sign);
}

int64_t floor_divide(int64_t left, int64_t right) { return left / right - ((left % right != 0) && ((left < 0) != (right < 0))); }

double float_modulo(double left, double right) {
  const double rest = std::fmod(left, right);
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest == 0 ? std::copysign(0.0, right) : rest;
}

// Python's float floor division: exact where left / right is nearly an integer.
double float_floor_divide(double left, double right) {
  const double rest = std::fmod(left, right);
  double quotient = (left - rest) / right;
  if (rest != 0 && (rest < 0) != (right < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, left / right);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value integer_power(int64_t base, int64_t exponent, TemplateBudget& budget) {
  if (exponent < 0) {
    if (base == 0) budget.fail("0 to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t power = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(power, base, &power)) refuse_large("**", budget);
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) refuse_large("**", budget);
  }
  return power;
}

Value integers(Operator sign, int64_t left, int64_t right, TemplateBudget& budget) {
  int64_t result = 0;
  switch (sign) {
    case Operator::add:
      if (__builtin_add_overflow(left, right, &result)) refuse_large("+", budget);
      return result;
    case Operator::subtract:
      if (__builtin_sub_overflow(left, right, &result)) refuse_large("-", budget);
      return result;
    case Operator::multiply:
      if (__builtin_mul_overflow(left, right, &result)) refuse_large("*", budget);
      return result;
    case Operator::power:
      return integer_power(left, right, budget);
    default:
      break;
  }
  if (right == 0) budget.fail("a division by zero");
  if (sign == Operator::divide) return static_cast<double>(left) / static_cast<double>(right);
  if (right == -1) {  // INT64_MIN / -1 has no 64 bits
    if (sign == Operator::modulo) return int64_t{0};
    return negative(left, budget);
  }
  if (sign == Operator::floor_divide) return floor_divide(left, right);
  return left - floor_divide(left, right) * right;
}

Value numbers(Operator sign, double left, double right, TemplateBudget& budget) {
  switch (sign) {
    case Operator::add:
      return left + right;
    case Operator::subtract:
      return left - right;
    case Operator::multiply:
      return left * right;
    case Operator::power: {
      const double power = std::pow(left, right);
      if (std::isnan(power) && !std::isnan(left) && !std::isnan(right)) budget.fail("a power of a negative number that is no real number");
      if (std::isinf(power) && std::isfinite(left) && std::isfinite(right)) budget.fail("a power that is too large");
      return power;
    }
    default:
      break;
  }
  if (right == 0) budget.fail("a division by zero");
  if (sign == Operator::divide) return left / right;
  if (sign == Operator::modulo) return float_modulo(left, right);
  return float_floor_divide(left, right);
}

Value repeated(const Value& value, int64_t times, TemplateBudget& budget) {
  times = std::max<int64_t>(times, 0);
  const size_t size = value.is_text() ? value.text().size() : value.list().items.size();
  if (size > 0 && times > kMadeBytes / static_cast<int64_t>(size)) times = kMadeBytes / static_cast<int64_t>(size) + 1;
  budget.bytes((value.is_text() ? size : size * sizeof(Value)) * static_cast<size_t>(times));
  if (value.is_text()) {
    std::string text;
    text.reserve(size * static_cast<size_t>(times));
    for (int64_t i = 0; size > 0 && i < times; ++i) text += value.text();
    return Value(std::move(text));
  }
  Values items;
  for (int64_t i = 0; size > 0 && i < times; ++i) items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  return make_list(std::move(items), budget, value.list().form);
}

bool is_row(const Value& value) { return value.is_text() || (value.is_list() && value.list().is_list_or_tuple()); }

Value calculate(Operator sign, std::string_view written, const Value& left, const Value& right, TemplateBudget& budget) {
  if (left.is_integer() && right.is_integer()) return integers(sign, left.integer(), right.integer(), budget);
  if (left.is_number() && right.is_number()) return numbers(sign, left.number(), right.number(), budget);
  if (sign == Operator::add && left.is_text() && right.is_text()) {
    budget.bytes(left.text().size() + right.text().size());
    return Value(left.text() + right.text());
  }
  if (sign == Operator::add && left.is_list() && right.is_list() && is_row(left) && left.list().form == right.list().form) {
    budget.bytes((left.list().items.size() + right.list().items.size()) * sizeof(Value));
    Values items = left.list().items;
    items.insert(items.end(), right.list().items.begin(), right.list().items.end());
    return make_list(std::move(items), budget, left.list().form);
  }
  if (sign == Operator::multiply && is_row(left) && right.is_integer()) return repeated(left, right.integer(), budget);
  if (sign == Operator::multiply && is_row(right) && left.is_integer()) return repeated(right, left.integer(), budget);
  if (sign == Operator::modulo && left.is_text()) return format_percent(left.text(), right, budget);
  refuse(written, left, right, budget);
}

}  // namespace

Value apply(Operator sign, const Value& left, const Value& right, TemplateBudget& budget) {
  switch (sign) {
    case Operator::add:
      return calculate(sign, "+", left, right, budget);
    case Operator::subtract:
      return calculate(sign, "-", left, right, budget);
    case Operator::multiply:
      return calculate(sign, "*", left, right, budget);
    case Operator::divide:
      return calculate(sign, "/", left, right, budget);
    case Operator::floor_divide:
      return calculate(sign, "//", left, right, budget);
    case Operator::modulo:
      return calculate(sign, "%", left, right, budget);
    case Operator::power:
      return calculate(sign, "**", left, right, budget);
    case Operator::equal:
      return equal(left, right, budget);
    case Operator::unequal:
      return !equal(left, right, budget);
    case Operator::below:
      return order(left, right, budget) < 0;
    case Operator::at_most:
      return order(left, right, budget) <= 0;
    case Operator::above:
      return order(left, right, budget) > 0;
    case Operator::at_least:
      return order(left, right, budget) >= 0;
    case Operator::in:
      return contains(right, left, budget);
    case Operator::not_in:
      return !contains(right, left, budget);
  }
  return {};
}

Value negative(const Value& value, TemplateBudget& budget) {
  if (value.is_integer()) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, value.integer(), &result)) refuse_large("-", budget);
    return result;
  }
  if (value.is_number()) return -value.number();
  if (value.is_undefined()) budget.fail("{} is undefined and has no sign", value.undefined_name());
  budget.fail("{} has no sign", type_name(value));
}

bool contains(const Value& whole, const Value& part, TemplateBudget& budget) {
  if (whole.is_text()) {
    if (!part.is_text()) budget.fail("'in' a string looks for a string, not for {}", type_name(part));
    budget.step(static_cast<int64_t>(whole.text().size() + part.text().size()) / 64);
    return find_text(whole.text(), part.text()) != std::string_view::npos;
  }
  if (whole.is_dict()) return find(whole.dict(), part, budget) != nullptr;
  if (whole.is_list() && whole.list().has_length()) {
    const Values& items = whole.list().items;
    return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(item, part, budget); });
  }
  const Values items = items_of(whole, budget);
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(item, part, budget); });
}

Value replace_text(std::string_view text, std::string_view old, std::string_view with, int64_t count, TemplateBudget& budget) {
  std::vector<size_t> places;
  if (old.empty()) {  // Python inserts the new text around every character
    budget.bytes(text.size() * sizeof(size_t));
    for (size_t at = 0; at <= text.size() && (count < 0 || static_cast<int64_t>(places.size()) < count);) {
      places.push_back(at);
      at += at < text.size() ? characters_of(text.substr(at, 4))[0].size() : 1;
    }
  } else {
    budget.bytes(text.size() / old.size() * sizeof(size_t));
    budget.step(static_cast<int64_t>(text.size()) / 64);
    places = find_all(text, old, count);
  }
  budget.step(static_cast<int64_t>(places.size()));
  if (!with.empty() && places.size() > static_cast<size_t>(kMadeBytes) / with.size()) budget.bytes(static_cast<size_t>(kMadeBytes) + 1);
  budget.bytes(text.size() + places.size() * with.size());
  std::string made;
  size_t from = 0;
  for (const size_t at : places) {
    made += text.substr(from, at - from);
    made += with;
    from = at + old.size();
  }
  made += text.substr(from);
  return Value(std::move(made));
}

}  // namespace cairn::data::jinja
