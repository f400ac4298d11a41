#include "data/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "data/tokenizer/characters.h"

namespace cairn::data::jinja {
namespace {

// repr(float): the shortest digits that read back to the same number; an exponent below -4 or from 16 on.
std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto shortest = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  const std::string scientific(buffer, shortest.ptr);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

// Writes a value; elements of lists and dicts go through repr, which quotes texts.
class Printer {
 public:
  explicit Printer(TemplateBudget& budget) : budget_(budget) {}

  std::string text;

  void print(const Value& value, bool quoted) {
    const size_t before = text.size();
    budget_.step();
    if (value.is_undefined()) {
      if (quoted) text += "Undefined";
    } else if (value.is_none()) {
      text += "None";
    } else if (value.is_bool()) {
      text += value.as<bool>() ? "True" : "False";
    } else if (value.is_integer()) {
      text += std::to_string(value.integer());
    } else if (value.is_number()) {
      text += float_text(value.number());
    } else if (value.is_text()) {
      quoted ? quote(value.text()) : void(text += value.text());
    } else if (value.is_list()) {
      print_list(value.list());
      return;
    } else if (value.is_dict()) {
      print_dict(value.dict());
      return;
    } else {
      budget_.fail("a {} has no text to write", type_name(value));
    }
    budget_.bytes(text.size() - before);
  }

 private:
  void print_list(const List& list) {
    if (list.form == List::Form::once)
      budget_.fail("what a filter gives cannot be written as it is: put \"| list\" or \"| join\" after it");
    if (list.form == List::Form::range) return print_range(list);
    const bool tuple = list.form == List::Form::tuple, view = !list.has_indices();
    if (view) text += fmt::format("{}(", form_name(list.form));
    text += tuple ? '(' : '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) text += ", ";
      print(list.items[i], true);
    }
    if (tuple && list.items.size() == 1) text += ',';
    text += tuple ? ')' : ']';
    if (view) text += ')';
  }

  void print_range(const List& list) {
    const auto [start, stop, step] = list.bounds;
    text += step == 1 ? fmt::format("range({}, {})", start, stop) : fmt::format("range({}, {}, {})", start, stop, step);
    budget_.bytes(64);
  }

  void print_dict(const Dict& dict) {
    text += '{';
    for (size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) text += ", ";
      print(dict.entries[i].first, true);
      text += ": ";
      print(dict.entries[i].second, true);
    }
    text += '}';
  }

  void quote(const std::string& plain) {
    const char mark = plain.find('\'') != std::string::npos && plain.find('"') == std::string::npos ? '"' : '\'';
    text += mark;
    for (size_t at = 0; at < plain.size();) {
      const Character character = character_at(plain, at);
      if (character.code == '\n') {
        text += "\\n";
      } else if (character.code == '\t') {
        text += "\\t";
      } else if (character.code == '\r') {
        text += "\\r";
      } else if (character.code == '\\' || character.code == static_cast<uint32_t>(mark)) {
        text += {'\\', static_cast<char>(character.code)};
      } else if (character.code < 0x20 || (character.code >= 0x7F && character.code <= 0xA0) || character.code == 0xAD) {
        text += fmt::format("\\x{:02x}", character.code);
      } else {
        text += std::string_view(plain).substr(at, character.bytes);
      }
      at += character.bytes;
    }
    text += mark;
  }

  TemplateBudget& budget_;
};

// Writes JSON as Python's json.dumps does.
class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, TemplateBudget& budget) : style_(style), budget_(budget) {}

  std::string text;

  void write(const Value& value, int depth) {
    const size_t before = text.size();
    budget_.step();
    if (value.is_none()) {
      text += "null";
    } else if (value.is_bool()) {
      text += value.as<bool>() ? "true" : "false";
    } else if (value.is_integer()) {
      text += std::to_string(value.integer());
    } else if (value.is_number()) {
      write_number(value.number());
    } else if (value.is_text()) {
      quote(value.text());
    } else if (value.is_list() && value.list().is_list_or_tuple()) {
      write_list(value.list(), depth);
      return;
    } else if (value.is_dict()) {
      write_dict(value.dict(), depth);
      return;
    } else {
      budget_.fail("tojson: {} cannot be written as JSON",
                   value.is_undefined() ? value.undefined_name() + ", which is undefined," : std::string(type_name(value)));
    }
    budget_.bytes(text.size() - before);
  }

 private:
  void write_number(double number) {
    if (std::isfinite(number)) {
      text += float_text(number);
    } else {
      text += std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
    }
  }

  void new_line(int depth) {
    if (!style_.indent) return;
    budget_.bytes(style_.indent->size() * static_cast<size_t>(depth) + 1);
    text += '\n';
    for (int i = 0; i < depth; ++i) text += *style_.indent;
  }

  void write_list(const List& list, int depth) {
    text += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) text += style_.between_items;
      new_line(depth + 1);
      write(list.items[i], depth + 1);
    }
    if (!list.items.empty()) new_line(depth);
    text += ']';
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<const Entry*> entries;
    for (const Entry& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [this](const Entry* left, const Entry* right) { return order(left->first, right->first, budget_) < 0; });
    }
    text += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) text += style_.between_items;
      new_line(depth + 1);
      write_key(entries[i]->first);
      text += style_.after_key;
      write(entries[i]->second, depth + 1);
    }
    if (!entries.empty()) new_line(depth);
    text += '}';
  }

  void write_key(const Value& key) {
    if (key.is_text()) return quote(key.text());
    if (key.is_list() || key.is_dict()) budget_.fail("tojson: a {} cannot be a key", type_name(key));
    text += '"';
    write(key, 0);
    text += '"';
  }

  void quote(const std::string& plain) {
    text += '"';
    for (size_t at = 0; at < plain.size();) {
      const Character character = character_at(plain, at);
      quote_one(std::string_view(plain).substr(at, character.bytes), character.code);
      at += character.bytes;
    }
    text += '"';
  }

  void quote_one(std::string_view bytes, uint32_t code) {
    static constexpr std::string_view kPlain = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kLetter = "\"\\nrtfb";
    if (const size_t at = code < 0x80 ? kPlain.find(static_cast<char>(code)) : std::string_view::npos; at != std::string_view::npos) {
      text += {'\\', kLetter[at]};
    } else if (code < 0x20 || (style_.ascii_only && code > 0x7E && code < 0x10000)) {
      text += fmt::format("\\u{:04x}", code);
    } else if (style_.ascii_only && code > 0x7E && code != kNoCharacter) {
      text += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
      text += bytes;
    }
  }

  const JsonStyle& style_;
  TemplateBudget& budget_;
};

Value from_json_at(const base::OrderedJson& json, TemplateBudget& budget, int depth) {
  if (depth > kValueDepth) budget.fail("the messages or variables lie within one another more than {} deep", kValueDepth);
  budget.step();
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    budget.fail("the number {} among the messages or variables is too large", json.get<uint64_t>());
  if (json.is_number()) return json.get<int64_t>();
  if (json.is_string()) return make_text(json.get<std::string>(), budget);
  if (json.is_array()) {
    Values items;
    for (const auto& item : json) items.push_back(from_json_at(item, budget, depth + 1));
    return make_list(std::move(items), budget);
  }
  if (!json.is_object()) budget.fail("the messages or variables hold something that is no JSON");
  std::vector<Entry> entries;
  for (const auto& [key, value] : json.items()) entries.emplace_back(make_text(key, budget), from_json_at(value, budget, depth + 1));
  return make_dict(std::move(entries), budget);
}

}  // namespace

std::string to_text(const Value& value, TemplateBudget& budget) {
  Printer printer(budget);
  printer.print(value, false);
  return std::move(printer.text);
}

std::string to_repr(const Value& value, TemplateBudget& budget) {
  Printer printer(budget);
  printer.print(value, true);
  return std::move(printer.text);
}

std::string to_json(const Value& value, const JsonStyle& style, TemplateBudget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return std::move(writer.text);
}

Value from_json(const base::OrderedJson& json, TemplateBudget& budget) { return from_json_at(json, budget, 0); }

}  // namespace cairn::data::jinja
