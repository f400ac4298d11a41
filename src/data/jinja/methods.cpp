#include <algorithm>
#include <array>
#include <optional>

#include "data/jinja/builtins.h"
#include "data/jinja/format_text.h"
#include "data/jinja/loop.h"
#include "data/jinja/operators.h"
#include "data/jinja/print.h"
#include "data/jinja/python_text.h"
#include "data/tokenizer/characters.h"

namespace cairn::data::jinja {
namespace {

using SharedLoopValue = std::shared_ptr<const Loop>;
using SharedCycler = std::shared_ptr<const Cycler>;

// The arguments of a method implementation.
struct MethodCall {
  const Value& self;
  ArgumentReader& take;
  TemplateBudget& budget;
};
using Run = Value (*)(MethodCall&);

Value made(std::string_view text, TemplateBudget& budget) { return make_text(std::string(text), budget); }

Value texts(const std::vector<std::string_view>& parts, TemplateBudget& budget) {
  Values values;
  for (const std::string_view part : parts) values.push_back(made(part, budget));
  return make_list(std::move(values), budget);
}

Value strip_ends(MethodCall& call, Ends ends) {
  const auto characters = call.take.take("chars");
  if (!characters || characters->is_none()) return made(strip(call.self.text(), ends), call.budget);
  if (!characters->is_text()) call.budget.fail("strip takes a string of characters, not {}", type_name(*characters));
  call.budget.step(static_cast<int64_t>(call.self.text().size() * (1 + characters->text().size() / 64)));
  return made(strip(call.self.text(), ends, characters->text()), call.budget);
}

Value split_text(MethodCall& call, bool from_right) {
  const auto separator = call.take.take("sep");
  const int64_t splits = call.take.integer_or("maxsplit", -1);
  const std::string& text = call.self.text();
  call.budget.bytes(text.size() * 8);  // of views into it, at worst
  if (!separator || separator->is_none()) return texts(split_words(text, splits, from_right), call.budget);
  if (!separator->is_text() || separator->text().empty()) call.budget.fail("split takes a string that is not empty as its separator");
  return texts(split_at(text, separator->text(), splits, from_right), call.budget);
}

// The part of a text from character `start` up to `end`, in which methods like find look.
struct Window {
  std::string_view text;
  int64_t first = 0;  // its first character
};

// Reads the last two arguments of such a method. None where the part begins after the end of the text.
std::optional<Window> window_of(MethodCall& call) {
  const std::string& text = call.self.text();
  const auto start = call.take.take("start"), end = call.take.take("end");
  if (!start && !end) return Window{text};
  const int64_t count = character_count(text);
  const auto bound = [&](const std::optional<Value>& given, int64_t otherwise) {
    if (!given || given->is_none()) return otherwise;
    if (!given->is_integer()) call.budget.fail("a text is searched from {}, and must be from a whole number", type_name(*given));
    return given->integer() < 0 ? std::max<int64_t>(given->integer() + count, 0) : given->integer();
  };
  const int64_t first = bound(start, 0), last = std::min(bound(end, count), count);
  if (first > count || first > last) return std::nullopt;
  const std::string_view rest = std::string_view(text).substr(byte_of_character(text, first));
  return Window{rest.substr(0, byte_of_character(rest, last - first)), first};
}

// startswith and endswith accept a string or a tuple of strings.
bool any_of(MethodCall& call, bool (*fits)(std::string_view, std::string_view)) {
  const Value wanted = call.take.require("prefix");
  const std::optional<Window> window = window_of(call);
  if (!window) return false;
  const auto check = [&](const Value& one) {
    if (!one.is_text()) call.budget.fail("startswith and endswith take a string or a tuple of strings, not {}", type_name(one));
    return fits(window->text, one.text());
  };
  if (!wanted.is_list() || wanted.list().form != List::Form::tuple) return check(wanted);
  return std::any_of(wanted.list().items.begin(), wanted.list().items.end(), check);
}

bool begins(std::string_view text, std::string_view with) { return text.starts_with(with); }
bool ends(std::string_view text, std::string_view with) { return text.ends_with(with); }

// find and rfind: the character at which a part stands, or -1.
int64_t place(MethodCall& call, bool last) {
  const std::string part = call.take.text("sub");
  const std::optional<Window> window = window_of(call);
  if (!window) return -1;
  if (last) call.budget.bytes(window->text.size());
  const size_t at = last ? find_last_text(window->text, part) : find_text(window->text, part);
  return at == std::string_view::npos ? -1 : window->first + character_count(window->text.substr(0, at));
}

// index and rindex.
int64_t place_or_refuse(MethodCall& call, bool last) {
  const int64_t found = place(call, last);
  if (found < 0) call.budget.fail("index: the string does not hold it");
  return found;
}

int64_t occurrences(MethodCall& call) {
  const std::string part = call.take.text("sub");
  const std::optional<Window> window = window_of(call);
  if (!window) return 0;
  call.budget.bytes(window->text.size() * sizeof(size_t) / (part.size() + 1));
  if (part.empty()) return character_count(window->text) + 1;
  return static_cast<int64_t>(find_all(window->text, part, -1).size());
}

// center, ljust, rjust, and zfill, which puts zeros after the sign.
Value at_width(MethodCall& call, Ends sides, bool zeros = false) {
  const Value width = call.take.require("width");
  if (!width.is_integer() || width.integer() > kWidthMax) call.budget.fail("a width must be a whole number up to {}", kWidthMax);
  const std::string fill = zeros ? "0" : call.take.text_or("fillchar", " ");
  if (character_count(fill) != 1) call.budget.fail("a text is filled with one character, not with '{}'", fill.substr(0, 100));
  std::string_view text = call.self.text();
  std::string sign;
  if (zeros && (text.starts_with('-') || text.starts_with('+'))) {
    sign = text.substr(0, 1);
    text.remove_prefix(1);
  }
  call.budget.bytes(static_cast<size_t>(kWidthMax) * fill.size());
  return make_text(sign + justified(text, std::max<int64_t>(width.integer(), 0) - static_cast<int64_t>(sign.size()), fill, sides),
                   call.budget);
}

// partition and rpartition: what lies before a separator, the separator, and what lies after it.
Value parted(MethodCall& call, bool last) {
  const std::string separator = call.take.text("sep");
  if (separator.empty()) call.budget.fail("partition takes a string that is not empty as its separator");
  const std::string_view text = call.self.text();
  call.budget.bytes(text.size());
  const size_t at = last ? find_last_text(text, separator) : find_text(text, separator);
  const bool found = at != std::string_view::npos;
  const Value whole = made(text, call.budget), none = made("", call.budget);
  if (!found) return make_list(last ? Values{none, none, whole} : Values{whole, none, none}, call.budget, List::Form::tuple);
  return make_list(
      {made(text.substr(0, at), call.budget), made(separator, call.budget), made(text.substr(at + separator.size()), call.budget)},
      call.budget, List::Form::tuple);
}

Value without(MethodCall& call, bool suffix) {
  const std::string part = call.take.text(suffix ? "suffix" : "prefix");
  std::string_view text = call.self.text();
  if (suffix ? text.ends_with(part) : text.starts_with(part)) suffix ? text.remove_suffix(part.size()) : text.remove_prefix(part.size());
  return made(text, call.budget);
}

Value joined(MethodCall& call) {
  std::string text;
  bool first = true;
  for (const Value& item : items_of(call.take.require("iterable"), call.budget)) {
    if (!item.is_text()) call.budget.fail("join: {} in the list, and only strings can be joined", type_name(item));
    call.budget.bytes(item.text().size() + call.self.text().size());
    if (!std::exchange(first, false)) text += call.self.text();
    text += item.text();
  }
  return Value(std::move(text));
}

Value pairs_of(const Dict& dict, TemplateBudget& budget) {
  Values pairs;
  for (const auto& [key, value] : dict.entries) pairs.push_back(make_list({key, value}, budget, List::Form::tuple));
  return make_list(std::move(pairs), budget, List::Form::pairs);
}

Value values_of(const Dict& dict, TemplateBudget& budget) {
  Values values;
  for (const auto& [_, value] : dict.entries) values.push_back(value);
  return make_list(std::move(values), budget, List::Form::values);
}

Value get_or(MethodCall& call) {
  const Value key = call.take.require("key");
  const auto otherwise = call.take.take("default");
  if (const Value* found = find(call.self.dict(), key, call.budget)) return *found;
  return otherwise.value_or(Value(None{}));
}

struct Known {
  const char* name;
  Run run;
};

constexpr auto kTextMethods = std::to_array<Known>({
    {"strip", [](MethodCall& c) { return strip_ends(c, {}); }},
    {"lstrip", [](MethodCall& c) { return strip_ends(c, {.left = true, .right = false}); }},
    {"rstrip", [](MethodCall& c) { return strip_ends(c, {.left = false, .right = true}); }},
    {"split", [](MethodCall& c) { return split_text(c, false); }},
    {"rsplit", [](MethodCall& c) { return split_text(c, true); }},
    {"splitlines",
     [](MethodCall& c) {
       c.budget.bytes(c.self.text().size() * 8);
       return texts(split_lines(c.self.text(), c.take.flag("keepends")), c.budget);
     }},
    {"startswith", [](MethodCall& c) { return Value(any_of(c, begins)); }},
    {"endswith", [](MethodCall& c) { return Value(any_of(c, ends)); }},
    {"replace",
     [](MethodCall& c) {
       const std::string old = c.take.text("old");
       const std::string with = c.take.text("new");
       return replace_text(c.self.text(), old, with, c.take.integer_or("count", -1), c.budget);
     }},
    {"upper", [](MethodCall& c) { return make_text(upper(c.self.text()), c.budget); }},
    {"lower", [](MethodCall& c) { return make_text(lower(c.self.text()), c.budget); }},
    {"title", [](MethodCall& c) { return make_text(title(c.self.text()), c.budget); }},
    {"capitalize", [](MethodCall& c) { return make_text(capitalize(c.self.text()), c.budget); }},
    {"join", joined},
    {"find", [](MethodCall& c) { return Value(place(c, false)); }},
    {"rfind", [](MethodCall& c) { return Value(place(c, true)); }},
    {"index", [](MethodCall& c) { return Value(place_or_refuse(c, false)); }},
    {"rindex", [](MethodCall& c) { return Value(place_or_refuse(c, true)); }},
    {"count", [](MethodCall& c) { return Value(occurrences(c)); }},
    {"partition", [](MethodCall& c) { return parted(c, false); }},
    {"rpartition", [](MethodCall& c) { return parted(c, true); }},
    {"center", [](MethodCall& c) { return at_width(c, {}); }},
    {"ljust", [](MethodCall& c) { return at_width(c, {.left = false, .right = true}); }},
    {"rjust", [](MethodCall& c) { return at_width(c, {.left = true, .right = false}); }},
    {"zfill", [](MethodCall& c) { return at_width(c, {.left = true, .right = false}, true); }},
    {"swapcase", [](MethodCall& c) { return make_text(swap_case(c.self.text()), c.budget); }},
    {"format", nullptr},  // handled in call_method: any arguments
    {"removeprefix", [](MethodCall& c) { return without(c, false); }},
    {"removesuffix", [](MethodCall& c) { return without(c, true); }},
    {"isspace", [](MethodCall& c) { return Value(!c.self.text().empty() && strip(c.self.text()).empty()); }},
    {"isalpha", [](MethodCall& c) { return Value(all_of_kind(c.self.text(), data::Kind::letter)); }},
    {"isalnum", [](MethodCall& c) { return Value(all_of_kind(c.self.text(), data::Kind::letter | data::Kind::number)); }},
    {"isascii", [](MethodCall& c) { return Value(std::ranges::all_of(c.self.text(), [](char one) { return (one & 0x80) == 0; })); }},
    {"isdecimal", [](MethodCall& c) { return Value(is_digits(c.self.text())); }},
    {"isdigit", [](MethodCall& c) { return Value(is_digits(c.self.text())); }},
    {"isnumeric", [](MethodCall& c) { return Value(all_of_kind(c.self.text(), data::Kind::number)); }},
    {"islower", [](MethodCall& c) { return Value(is_lower(c.self.text())); }},
    {"isupper", [](MethodCall& c) { return Value(is_upper(c.self.text())); }},
});

constexpr auto kDictMethods = std::to_array<Known>({
    {"get", get_or},
    {"items", [](MethodCall& c) { return pairs_of(c.self.dict(), c.budget); }},
    {"keys", [](MethodCall& c) { return make_list(items_of(c.self, c.budget), c.budget, List::Form::keys); }},
    {"values", [](MethodCall& c) { return values_of(c.self.dict(), c.budget); }},
    {"copy", [](MethodCall& c) { return c.self; }},
});

constexpr auto kListMethods = std::to_array<Known>({
    {"count",
     [](MethodCall& c) {
       const Value wanted = c.take.require("value");
       int64_t count = 0;
       for (const Value& item : c.self.list().items) count += equal(item, wanted, c.budget);
       return Value(count);
     }},
    {"index",
     [](MethodCall& c) {
       const Value wanted = c.take.require("value");
       const Values& items = c.self.list().items;
       const auto count = static_cast<int64_t>(items.size());
       const auto bound = [&](int64_t given) { return std::clamp<int64_t>(given < 0 ? given + count : given, 0, count); };
       const auto first = static_cast<size_t>(bound(c.take.integer_or("start", 0)));
       const auto end = static_cast<size_t>(bound(c.take.integer_or("stop", count)));
       for (size_t i = first; i < end; ++i)
         if (equal(items[i], wanted, c.budget)) return Value(static_cast<int64_t>(i));
       c.budget.fail("index: the list does not hold it");
     }},
    {"copy", [](MethodCall& c) { return c.self; }},
});

constexpr auto kLoopMethods = std::to_array<Known>({
    {"cycle", nullptr},  // handled in call_method: any number of arguments
    {"changed", nullptr},
});

constexpr auto kCyclerMethods = std::to_array<Known>({
    {"next",
     [](MethodCall& c) {
       const Cycler& cycler = *c.self.as<SharedCycler>();
       return cycler.items[std::exchange(cycler.at, (cycler.at + 1) % cycler.items.size())];
     }},
    {"reset",
     [](MethodCall& c) {
       c.self.as<SharedCycler>()->at = 0;
       return Value(None{});
     }},
});

const Known* find_method(const Value& value, const std::string& name) {
  const auto among = [&](const auto& methods) -> const Known* {
    const auto at = std::find_if(methods.begin(), methods.end(), [&](const Known& known) { return name == known.name; });
    return at == methods.end() ? nullptr : &*at;
  };
  if (value.is_text()) return among(kTextMethods);
  if (value.is_dict()) return among(kDictMethods);
  if (value.is_list() && value.list().has_indices()) return among(kListMethods);
  if (value.is<SharedCycler>()) return among(kCyclerMethods);
  if (value.is<SharedLoopValue>()) return among(kLoopMethods);
  return nullptr;
}

Value call_loop_method(const Loop& loop, const std::string& name, const CallArguments& arguments, TemplateBudget& budget) {
  if (name == "cycle") {
    if (arguments.positional.empty()) budget.fail("loop.cycle needs something to go round in");
    return arguments.positional[static_cast<size_t>(loop.index) % arguments.positional.size()];
  }
  std::string now = to_text(make_list(arguments.positional, budget, List::Form::tuple),
                            budget);  // as text: a stored value might hold a reference to the loop
  const bool changed = loop.last_changed != now;
  loop.last_changed = std::move(now);
  return changed;
}

}  // namespace

bool has_method(const Value& value, const std::string& name) { return find_method(value, name) != nullptr; }

Value call_method(const Method& method, const CallArguments& arguments, TemplateBudget& budget) {
  if (method.self.is<SharedLoopValue>()) return call_loop_method(*method.self.as<SharedLoopValue>(), method.name, arguments, budget);
  if (method.self.is_text() && method.name == "format") return format_braces(method.self.text(), arguments, budget);
  const std::string called = fmt::format("{}.{}", type_name(method.self), method.name);
  if (method.self.is_text()) budget.step(static_cast<int64_t>(method.self.text().size()) / 32);
  ArgumentReader take(called, arguments, budget);
  MethodCall call{method.self, take, budget};
  Value value = find_method(method.self, method.name)->run(call);
  take.done();
  return value;
}

std::string refused_method(const Value& value, const std::string& name) {
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (value.is_list() && is_one_of({"append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort"}))
    return "would change a list, which transformers does not allow either: write list + [item]";
  if (value.is_dict() && is_one_of({"update", "pop", "popitem", "clear", "setdefault"}))
    return "would change a dict, which transformers does not allow either";
  return {};
}

}  // namespace cairn::data::jinja
