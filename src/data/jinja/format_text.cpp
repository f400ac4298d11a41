#include "data/jinja/format_text.h"

#include <cmath>

#include "data/jinja/format_spec.h"
#include "data/jinja/lookup.h"
#include "data/jinja/print.h"
#include "data/jinja/python_text.h"

namespace cairn::data::jinja {
namespace {

// The index that digits give; those beyond any list give one beyond it.
int64_t index_of(std::string_view digits) { return digits.size() > 9 ? 1'000'000'000 : std::stoll(std::string(digits)); }

class BraceFormat {
 public:
  BraceFormat(const CallArguments& arguments, TemplateBudget& budget) : arguments_(arguments), budget_(budget) {}

  // `depth`: 1 within a format specification, which may have fields itself.
  std::string run(std::string_view format, int depth) {
    std::string made;
    for (size_t at = 0; at < format.size();) {
      budget_.step();
      const char c = format[at++];
      if (c != '{' && c != '}') {
        made += c;
      } else if (at < format.size() && format[at] == c && depth == 0) {
        made += format[at++];
      } else if (c == '}') {
        budget_.fail("format: \"}}\" stands alone: write \"}}}}\"");
      } else {
        const size_t end = end_of_field(format, at);
        made += field(format.substr(at, end - at), depth);
        at = end + 1;
      }
    }
    budget_.bytes(made.size());
    return made;
  }

 private:
  size_t end_of_field(std::string_view format, size_t at) {
    bool in_name = true;  // before the specification: brackets hold a key there
    for (int open = 1; at < format.size(); ++at) {
      if (format[at] == ':' || format[at] == '!') in_name = false;
      if (in_name && format[at] == '[') at = std::min(format.find(']', at), format.size() - 1);
      open += format[at] == '{' ? 1 : format[at] == '}' ? -1 : 0;
      if (open == 0) return at;
    }
    budget_.fail("format: \"{{\" has no \"}}\"");
  }

  std::string field(std::string_view text, int depth) {
    if (depth > 1) budget_.fail("format: fields lie within one another more than 2 deep");
    size_t name_end = 0;
    while (name_end < text.size() && text[name_end] != '!' && text[name_end] != ':')
      name_end = text[name_end] == '[' ? std::min(text.find(']', name_end), text.size() - 1) + 1 : name_end + 1;
    Value value = value_of(text.substr(0, name_end));
    text.remove_prefix(name_end);
    if (text.starts_with('!')) {
      const char how = text.size() > 1 ? text[1] : '\0';
      if (how != 'r' && how != 's') budget_.fail("format: \"!{}\" is not supported: !r and !s are", how == 0 ? ' ' : how);
      value = make_text(how == 'r' ? to_repr(value, budget_) : to_text(value, budget_), budget_);
      text.remove_prefix(2);
    }
    if (!text.empty() && text[0] != ':') budget_.fail("format: expected \":\" after the conversion");
    return format_value(value, parse_format_spec(text.empty() ? "" : run(text.substr(1), depth + 1), budget_), budget_);
  }

  // "0.name[key]": an argument, and attributes and items of it.
  Value value_of(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      const bool item = name[at] == '[';
      const size_t next = item ? name.find(']', at) : std::min(name.find_first_of(".[", at + 1), name.size());
      if (next == std::string_view::npos) budget_.fail("format: \"[\" has no \"]\"");
      const std::string part(name.substr(at + 1, next - at - 1));
      if (part.empty()) budget_.fail("format: an attribute or item without a name");
      value = !item             ? get_attribute(value, part, budget_)
              : is_digits(part) ? get_item(value, index_of(part), budget_)
                                : get_item(value, part, budget_);
      at = item ? next + 1 : next;
      if (item && at < name.size() && name[at] != '.' && name[at] != '[') budget_.fail("format: only \".\" or \"[\" may follow \"]\"");
    }
    return value;
  }

  Value argument(std::string_view name) {
    if (name.empty() || is_digits(name)) {
      const Numbering now = name.empty() ? Numbering::automatic : Numbering::by_hand;
      if (numbering_ != Numbering::none && numbering_ != now) budget_.fail("format: fields with and without numbers do not mix");
      numbering_ = now;
      const auto index = static_cast<size_t>(name.empty() ? next_++ : index_of(name));
      if (index >= arguments_.positional.size()) budget_.fail("format: there is no argument {}", index);
      return arguments_.positional[index];
    }
    for (const auto& [known, value] : arguments_.named)
      if (known == name) return value;
    budget_.fail("format: there is no argument '{}'", name.substr(0, 100));
  }

  enum class Numbering { none, automatic, by_hand };
  const CallArguments& arguments_;
  TemplateBudget& budget_;
  Numbering numbering_ = Numbering::none;
  int64_t next_ = 0;
};

class PercentFormat {
 public:
  PercentFormat(const Value& arguments, TemplateBudget& budget) : arguments_(arguments), budget_(budget) {
    const bool several = arguments.is_list() && arguments.list().form == List::Form::tuple;
    values_ = several ? arguments.list().items : Values{arguments};
  }

  std::string run(std::string_view format) {
    std::string made;
    for (size_t at = 0; at < format.size();) {
      budget_.step();
      if (format[at] != '%') {
        made += format[at++];
        continue;
      }
      made += field(format, ++at);
    }
    if (next_ < values_.size() && !arguments_.is_dict()) budget_.fail("% was given {} values and used {}", values_.size(), next_);
    budget_.bytes(made.size());
    return made;
  }

 private:
  const Value& next() {
    if (next_ >= values_.size()) budget_.fail("% has more fields than values");
    return values_[next_++];
  }

  int64_t width_at(std::string_view format, size_t& at) {
    if (at >= format.size() || format[at] != '*') return read_width(format, at, budget_).value_or(0);
    budget_.fail("'*' in a format is not supported: write the width");
  }

  std::string field(std::string_view format, size_t& at) {
    std::optional<Value> named;
    if (at < format.size() && format[at] == '(') {
      const size_t end = format.find(')', at);
      if (end == std::string_view::npos || !arguments_.is_dict()) budget_.fail("%(name) needs a \")\" and a dict of values");
      const std::string name(format.substr(at + 1, end - at - 1));
      const Value* found = find(arguments_.dict(), name);
      if (found == nullptr) budget_.fail("% was given no '{}'", name.substr(0, 100));
      named = *found;
      at = end + 1;
    }
    FormatSpec spec{.align = '>'};
    bool zero = false;
    for (; at < format.size() && std::string_view("-+ 0#").find(format[at]) != std::string_view::npos; ++at) {
      if (format[at] == '-') spec.align = '<';
      if (format[at] == '+' || (format[at] == ' ' && spec.sign != '+')) spec.sign = format[at];
      if (format[at] == '0') zero = true;
      if (format[at] == '#') spec.alternate = true;
    }
    spec.width = width_at(format, at);
    if (at < format.size() && format[at] == '.') spec.precision = width_at(format, ++at);
    if (at == format.size()) budget_.fail("a format ends after %");
    const char type = format[at++];
    if (type == '%') return "%";
    const Value value = named ? *named : next();
    if (zero && spec.align == '>' && value.is_number() && std::string_view("sr").find(type) == std::string_view::npos) {
      spec.align = '=';
      spec.fill = "0";
    }
    return converted(value, type, spec);
  }

  std::string converted(const Value& value, char type, FormatSpec spec) {
    if (type == 's' || type == 'r') {
      spec.sign = '-', spec.alternate = false;
      return format_value(make_text(type == 's' ? to_text(value, budget_) : to_repr(value, budget_), budget_), spec, budget_);
    }
    if (!value.is_number()) budget_.fail("%{} needs a number, not {}", type, type_name(value));
    if (std::string_view("diu").find(type) != std::string_view::npos) {
      spec.type = 'd', spec.alternate = false;
      if (!value.is_integer() && !(std::abs(value.number()) < 0x1p63)) budget_.fail("%d of a number of more than 64 bits");
      return format_value(value.is_integer() ? value.integer() : static_cast<int64_t>(value.number()), spec, budget_);
    }
    if (std::string_view("oxXeEfFgG").find(type) == std::string_view::npos) budget_.fail("%{} is not supported", type);
    spec.type = type;
    if (std::string_view("oxX").find(type) != std::string_view::npos && !value.is_integer())
      budget_.fail("%{} needs a whole number, not {}", type, type_name(value));
    return format_value(value, spec, budget_);
  }

  const Value& arguments_;
  TemplateBudget& budget_;
  Values values_;
  size_t next_ = 0;
};

}  // namespace

Value format_braces(const std::string& format, const CallArguments& arguments, TemplateBudget& budget) {
  return Value(BraceFormat(arguments, budget).run(format, 0));
}

Value format_percent(const std::string& format, const Value& arguments, TemplateBudget& budget) {
  return Value(PercentFormat(arguments, budget).run(format));
}

}  // namespace cairn::data::jinja
