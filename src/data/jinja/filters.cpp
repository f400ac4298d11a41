#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "data/jinja/builtins.h"
#include "data/jinja/filter_call.h"
#include "data/jinja/lookup.h"
#include "data/jinja/operators.h"
#include "data/jinja/print.h"
#include "data/jinja/python_text.h"

namespace cairn::data::jinja {
namespace {

Value trim(FilterCall& c) {
  const auto characters = c.take.take("chars");
  const std::string text = c.text();
  if (!characters || characters->is_none()) return c.give(strip(text));
  if (!characters->is_text()) c.budget.fail("filter 'trim': 'chars' is {}, and must be a string", type_name(*characters));
  c.budget.step(static_cast<int64_t>(text.size() * (1 + characters->text().size() / 64)));
  return c.give(strip(text, {}, characters->text()));
}

// Jinja's title: words begin after whitespace, hyphens and opening brackets.
Value title_words(FilterCall& c) {
  const std::string text = c.text();
  c.budget.bytes(text.size() * sizeof(std::string_view));
  std::string made;
  bool first = true;
  for (const std::string_view character : characters_of(text)) {
    const bool between = character.find_first_of("-({[<") != std::string_view::npos || strip(character).empty();
    made += between ? std::string(character) : first ? upper(character) : lower(character);
    first = between;
  }
  return c.give(made);
}

Value join_items(FilterCall& c) {
  const auto separator = c.take.take("d");
  const auto attribute = c.take.take("attribute");
  const std::string between = separator ? to_text(*separator, c.budget) : "";
  std::string text;
  bool first = true;
  for (const Value& item : items_of(c.input, c.budget)) {
    if (!std::exchange(first, false)) text += between;
    text += to_text(part_or_item(item, attribute, c.budget), c.budget);
    c.budget.bytes(between.size());
  }
  return c.give(text);
}

Value default_of(FilterCall& c) {
  const auto otherwise = c.take.take("default_value");
  const bool falsy_too = c.take.flag("boolean");
  if (c.input.is_undefined() || (falsy_too && !truth(c.input))) return otherwise.value_or(Value(std::string()));
  return c.input;
}

Value json_of(FilterCall& c) {
  JsonStyle style;
  style.ascii_only = c.take.flag("ensure_ascii");
  const auto indent = c.take.take("indent");
  const auto separators = c.take.take("separators");
  style.sort_keys = c.take.flag("sort_keys");
  if (indent && !indent->is_none()) {
    if (!indent->is_text() && !indent->is_integer())
      c.budget.fail("filter 'tojson': 'indent' is {}, and must be a number", type_name(*indent));
    if (indent->is_integer() && indent->integer() > 100)
      c.budget.fail("filter 'tojson': 'indent' is {}, and at most 100", indent->integer());
    style.indent = indent->is_text() ? indent->text() : std::string(static_cast<size_t>(std::max<int64_t>(indent->integer(), 0)), ' ');
    style.between_items.assign(1, ',');
  }
  if (separators && !separators->is_none()) {
    const Values both = items_of(*separators, c.budget);
    if (both.size() != 2 || !both[0].is_text() || !both[1].is_text())
      c.budget.fail("filter 'tojson': 'separators' must be two strings, the one between items and the one after keys");
    style.between_items = both[0].text();
    style.after_key = both[1].text();
  }
  return Value(to_json(c.input, style, c.budget));
}

Value first_of(FilterCall& c) {
  Values items = items_of(c.input, c.budget);
  return items.empty() ? Value::undefined("the first item of something empty") : items.front();
}

Value last_of(FilterCall& c) {
  if (c.input.is_list() && c.input.list().form == List::Form::once) c.budget.fail("filter 'last' needs a list: put \"| list\" before it");
  Values items = items_of(c.input, c.budget);
  return items.empty() ? Value::undefined("the last item of something empty") : items.back();
}

Value replace_in(FilterCall& c) {
  const std::string old = to_text(c.take.require("old"), c.budget);
  const std::string with = to_text(c.take.require("new"), c.budget);
  return replace_text(c.text(), old, with, c.take.integer_or("count", -1), c.budget);
}

Value give_once(Values items, FilterCall& c) { return make_list(std::move(items), c.budget, List::Form::once); }

Value map_items(FilterCall& c) {
  Values made;
  if (c.arguments.positional.empty()) {
    const Value path = c.take.require("attribute");
    const auto otherwise = c.take.take("default");
    for (const Value& item : items_of(c.input, c.budget)) {
      made.push_back(get_path(item, path, c.budget));
      if (otherwise && !otherwise->is_none() && made.back().is_undefined()) made.back() = *otherwise;
    }
    return give_once(std::move(made), c);
  }
  const std::string name = c.take.text("filter");
  CallArguments rest = c.arguments;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : items_of(c.input, c.budget)) made.push_back(apply_filter(name, item, rest, c.budget));
  return give_once(std::move(made), c);
}

enum class Keep { where_it_holds, where_not };

// select, reject, selectattr, rejectattr: (attribute,) test, arguments of the test.
Value filter_items(FilterCall& c, Keep keep, bool by_attribute) {
  CallArguments rest = c.arguments;
  const auto shift = [&] {
    Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  if (by_attribute && rest.positional.empty()) c.budget.fail("selectattr and rejectattr need the name of an attribute");
  const Value path = by_attribute ? shift() : Value();
  const bool tested = !rest.positional.empty();
  const Value test = tested ? shift() : Value();
  if (tested && !test.is_text()) c.budget.fail("the name of a test is {}, and must be a string", type_name(test));
  Values kept;
  for (const Value& item : items_of(c.input, c.budget)) {
    const Value value = by_attribute ? get_path(item, path, c.budget) : item;
    const bool holds = tested ? apply_test(test.text(), value, rest, c.budget) : truth(value);
    if (holds == (keep == Keep::where_it_holds)) kept.push_back(item);
  }
  return give_once(std::move(kept), c);
}

Value rounded(FilterCall& c) {
  const int64_t precision = c.take.integer_or("precision", 0);
  const std::string method = c.take.text_or("method", "common");
  if (!c.input.is_number()) c.budget.fail("filter 'round' needs a number, not {}", type_name(c.input));
  if (precision < 0 || precision > 20) c.budget.fail("filter 'round': 'precision' is {}, and must be 0 to 20", precision);
  if (method == "common") {
    if (c.input.is_integer()) return c.input.integer();
    return std::strtod(fmt::format("{:.{}f}", c.input.number(), precision).c_str(), nullptr);
  }
  if (method != "ceil" && method != "floor") c.budget.fail("filter 'round': 'method' is '{}', and must be common, ceil or floor", method);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = c.input.number() * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value pairs_filter(FilterCall& c) {
  if (c.input.is_undefined()) return give_once({}, c);
  if (!c.input.is_dict()) c.budget.fail("filter 'items' and 'dictsort' need a dict, not {}", type_name(c.input));
  return call_method({c.input, "items"}, {}, c.budget);
}

Value sorted_pairs(FilterCall& c) {
  const bool case_sensitive = c.take.flag("case_sensitive");
  const std::string by = c.take.text_or("by", "key");
  const bool reverse = c.take.flag("reverse");
  if (by != "key" && by != "value") c.budget.fail("filter 'dictsort': 'by' is '{}', and must be key or value", by);
  if (!c.input.is_dict()) c.budget.fail("filter 'dictsort' needs a dict, not {}", type_name(c.input));
  Values keys;
  for (const auto& [key, value] : c.input.dict().entries) keys.push_back(sort_key(by == "key" ? key : value, case_sensitive));
  return make_list(in_order(items_of(pairs_filter(c), c.budget), keys, reverse, c.budget), c.budget);
}

Value sorted_items(FilterCall& c) {
  const bool reverse = c.take.flag("reverse");
  const bool case_sensitive = c.take.flag("case_sensitive");
  const auto attribute = c.take.take("attribute");
  const Values items = items_of(c.input, c.budget);
  Values keys;
  for (const Value& item : items) keys.push_back(sort_key(part_or_item(item, attribute, c.budget), case_sensitive));
  return make_list(in_order(items, keys, reverse, c.budget), c.budget);
}

Value unique_items(FilterCall& c) {
  const bool case_sensitive = c.take.flag("case_sensitive");
  const auto attribute = c.take.take("attribute");
  Values kept, keys;
  for (const Value& item : items_of(c.input, c.budget)) {
    Value key = sort_key(part_or_item(item, attribute, c.budget), case_sensitive);
    check_key(key, c.budget);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& known) { return equal(known, key, c.budget); })) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return give_once(std::move(kept), c);
}

Value reversed(FilterCall& c) {
  Values items = items_of(c.input, c.budget);
  std::reverse(items.begin(), items.end());
  if (!c.input.is_text()) return give_once(std::move(items), c);
  std::string text;
  for (const Value& item : items) text += item.text();
  return c.give(text);
}

Value sum_of(FilterCall& c) {
  const auto attribute = c.take.take("attribute");
  Value total = c.take.take("start").value_or(Value(int64_t{0}));
  for (const Value& item : items_of(c.input, c.budget)) {
    const Value value = part_or_item(item, attribute, c.budget);
    total = apply(Operator::add, total, value, c.budget);
  }
  return total;
}

Value absolute(FilterCall& c) {
  if (!c.input.is_number()) c.budget.fail("filter 'abs' needs a number, not {}", type_name(c.input));
  return c.input.number() < 0 ? negative(c.input, c.budget) : c.input.is_bool() ? Value(c.input.integer()) : c.input;
}

Value indented(FilterCall& c) {
  const auto width = c.take.take("width");
  const bool first = c.take.flag("first");
  const bool blank = c.take.flag("blank");
  if (width && !width->is_text() && !width->is_integer())
    c.budget.fail("filter 'indent': 'width' is {}, and must be a number or a string", type_name(*width));
  const int64_t spaces = width && width->is_integer() ? width->integer() : 4;
  if (spaces > 1000) c.budget.fail("filter 'indent': 'width' is {}, and at most 1000", spaces);
  const std::string indent =
      width && width->is_text() ? width->text() : std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
  if (!c.input.is_text()) c.budget.fail("filter 'indent' needs a string, not {}", type_name(c.input));
  const std::string text = c.input.text() + "\n";
  std::string made = first ? indent : "";
  bool started = false;
  for (const std::string_view line : split_lines(text, false)) {
    c.budget.bytes(indent.size() + line.size() + 1);
    if (started) made += '\n';
    if (started && (blank || !line.empty())) made += indent;
    made += line;
    started = true;
  }
  return Value(std::move(made));
}

struct KnownFilter {
  const char* name;
  Value (*run)(FilterCall&);
  bool any_arguments = false;  // passes its arguments on and refuses none itself
};

constexpr auto kFilters = std::to_array<KnownFilter>({
    {"abs", absolute},
    {"attr", [](FilterCall& c) { return get_own_attribute(c.input, c.take.text("name"), c.budget); }},
    {"batch", batches},
    {"capitalize", [](FilterCall& c) { return c.give(capitalize(c.text())); }},
    {"center", centered},
    {"count", [](FilterCall& c) { return Value(length(c.input, c.budget)); }},
    {"d", default_of},
    {"default", default_of},
    {"dictsort", sorted_pairs},
    {"first", first_of},
    {"float", float_of},
    {"format", formatted, true},
    {"groupby", group_by},
    {"indent", indented},
    {"int", integer_of},
    {"items", [](FilterCall& c) { return give_once(items_of(pairs_filter(c), c.budget), c); }},
    {"join", join_items},
    {"last", last_of},
    {"length", [](FilterCall& c) { return Value(length(c.input, c.budget)); }},
    {"list", [](FilterCall& c) { return make_list(items_of(c.input, c.budget), c.budget); }},
    {"lower", [](FilterCall& c) { return c.give(lower(c.text())); }},
    {"map", map_items, true},
    {"max", largest},
    {"min", smallest},
    {"reject", [](FilterCall& c) { return filter_items(c, Keep::where_not, false); }, true},
    {"rejectattr", [](FilterCall& c) { return filter_items(c, Keep::where_not, true); }, true},
    {"replace", replace_in},
    {"reverse", reversed},
    {"round", rounded},
    {"safe", [](FilterCall& c) { return c.give(c.text()); }},
    {"select", [](FilterCall& c) { return filter_items(c, Keep::where_it_holds, false); }, true},
    {"selectattr", [](FilterCall& c) { return filter_items(c, Keep::where_it_holds, true); }, true},
    {"slice", slices},
    {"sort", sorted_items},
    {"string", [](FilterCall& c) { return c.give(c.text()); }},
    {"sum", sum_of},
    {"title", title_words},
    {"tojson", json_of},
    {"trim", trim},
    {"truncate", truncated},
    {"unique", unique_items},
    {"upper", [](FilterCall& c) { return c.give(upper(c.text())); }},
    {"wordcount", word_count},
});

// Filters of Jinja that chat templates have no use for.
constexpr auto kRefusedFilters = std::to_array<std::string_view>(
    {"e", "escape", "filesizeformat", "forceescape", "pprint", "random", "striptags", "urlencode", "urlize", "wordwrap", "xmlattr"});

}  // namespace

bool has_filter(std::string_view name) {
  return std::any_of(kFilters.begin(), kFilters.end(), [&](const KnownFilter& filter) { return name == filter.name; });
}

Value apply_filter(const std::string& name, const Value& input, const CallArguments& arguments, TemplateBudget& budget) {
  const auto known = std::find_if(kFilters.begin(), kFilters.end(), [&](const KnownFilter& filter) { return name == filter.name; });
  if (std::find(kRefusedFilters.begin(), kRefusedFilters.end(), name) != kRefusedFilters.end())
    budget.fail("the filter '{}' is not supported", name);
  if (known == kFilters.end()) {
    std::vector<std::string> names;
    for (const KnownFilter& filter : kFilters) names.emplace_back(filter.name);
    budget.fail_unknown("filter", name, names);
  }
  const std::string called = "filter '" + name + "'";
  if (input.is_text()) budget.step(static_cast<int64_t>(input.text().size()) / 32);
  ArgumentReader take(called, arguments, budget);
  FilterCall call{input, arguments, take, budget};
  Value value = known->run(call);
  if (!known->any_arguments) take.done();
  return value;
}

}  // namespace cairn::data::jinja
