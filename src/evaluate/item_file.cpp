#include "evaluate/item_file.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"

namespace cairn::evaluate {
namespace {

constexpr int64_t kFileBytesMax = 256 << 20;
constexpr size_t kLineBytesMax = 16 << 20;
constexpr int kDepthMax = 16;
constexpr size_t kChoicesMax = 1000;

using Names = std::initializer_list<const char*>;

// The first of these fields that the item has; null where it has none.
const base::Json* field(const base::Json& item, Names names) {
  for (const char* name : names)
    if (const auto found = item.find(name); found != item.end() && !found->is_null()) return &*found;
  return nullptr;
}

std::string list_of(Names names) {
  std::string all;
  for (const char* name : names) all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", name);
  return all;
}

// The line of an item, for errors.
struct Place {
  const std::string& path;
  int64_t line;
  [[noreturn]] void refuse(const std::string& why) const { base::fail_input("{}:{}: {}", path, line, why); }
};

const base::Json& needed(const base::Json& item, Names names, const Place& place) {
  const base::Json* found = field(item, names);
  if (!found) place.refuse(fmt::format("no field {}", list_of(names)));
  return *found;
}

std::string text_of(const base::Json& value, const char* what, const Place& place) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return base::compact(value);
  place.refuse(fmt::format("{} must be a text, and is {}", what, value.type_name()));
}

// One item for each line that is not empty.
template <typename Item, typename Parse>
std::vector<Item> read_items(const std::string& path, int64_t limit, const Parse& parse) {
  const std::string text = base::read_file(path, kFileBytesMax);
  std::vector<Item> items;
  int64_t number = 0;
  for (size_t at = 0; at < text.size() && (limit == 0 || static_cast<int64_t>(items.size()) < limit);) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    const Place place{path, ++number};
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (line.size() > kLineBytesMax) place.refuse(fmt::format("a line of {} bytes, at most {} are read", line.size(), kLineBytesMax));
    const base::GuardedJson json = base::parse_json_guarded(line, kDepthMax);
    if (json.too_deep) place.refuse(fmt::format("nested deeper than {}", kDepthMax));
    if (json.value.is_discarded())
      place.refuse(json.invalid_at ? fmt::format("invalid JSON at byte {}", *json.invalid_at) : std::string("invalid JSON"));
    if (!json.value.is_object()) place.refuse("not a JSON object");
    items.push_back(parse(json.value, place));
    items.back().line = number;
  }
  if (items.empty()) base::fail_input("{}: no item in it", path);
  return items;
}

std::vector<std::string> texts_of(const base::Json& list, const char* what, const Place& place) {
  if (!list.is_array()) place.refuse(fmt::format("{} must be a list, and is {}", what, list.type_name()));
  std::vector<std::string> texts;
  for (const base::Json& one : list) texts.push_back(text_of(one, fmt::format("each of {}", what).c_str(), place));
  return texts;
}

// The index of the choice that an answer names; -1 for none.
int64_t place_of(const base::Json& answer, const std::vector<std::string>& choices, const std::vector<std::string>& labels) {
  const auto count = static_cast<int64_t>(choices.size());
  if (answer.is_number_integer()) {
    const auto place = answer.get<int64_t>();
    if (labels.empty()) return place >= 0 && place < count ? place : -1;
  }
  const std::string text = answer.is_string() ? answer.get<std::string>() : base::compact(answer);
  for (const std::vector<std::string>* names : {&labels, &choices})
    if (const auto found = std::find(names->begin(), names->end(), text); found != names->end()) return found - names->begin();
  if (text.size() == 1 && text[0] >= 'A' && text[0] < 'A' + count) return text[0] - 'A';
  int64_t place = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), place);
  return error == std::errc() && end == text.data() + text.size() && place >= 0 && place < count ? place : -1;
}

ChoiceItem choice_item(const base::Json& json, const Place& place) {
  ChoiceItem item;
  const base::Json* context = field(json, {"context", "ctx"});
  const base::Json* question = field(json, {"question", "query", "prompt"});
  if (!context && !question) needed(json, {"context", "ctx", "question", "query", "prompt"}, place);
  if (context) item.context = text_of(*context, "the context", place);
  if (question) item.context += (context ? "\n" : "") + text_of(*question, "the question", place);
  const base::Json& choices = needed(json, {"choices", "endings", "options"}, place);
  std::vector<std::string> labels;
  if (choices.is_object()) {
    item.choices = texts_of(needed(choices, {"text"}, place), "the choices' text", place);
    if (const base::Json* named = field(choices, {"label"})) labels = texts_of(*named, "the choices' label", place);
  } else {
    item.choices = texts_of(choices, "the choices", place);
  }
  if (item.choices.size() < 2 || item.choices.size() > kChoicesMax)
    place.refuse(fmt::format("{} choices; there must be 2 to {}", item.choices.size(), kChoicesMax));
  for (const std::string& one : item.choices)
    if (one.empty()) place.refuse("one of the choices is empty: it cannot be scored");
  const base::Json& answer = needed(json, {"answer", "label", "gold", "answerKey"}, place);
  item.gold = place_of(answer, item.choices, labels);
  if (item.gold < 0)
    place.refuse(fmt::format("the answer {} is none of the {} choices: give its place from 0, its letter or its text",
                             base::compact(answer), item.choices.size()));
  return item;
}

AnswerItem answer_item(const base::Json& json, const Place& place) {
  AnswerItem item;
  item.prompt = text_of(needed(json, {"prompt", "question", "input", "context"}, place), "the prompt", place);
  const base::Json& answer = needed(json, {"answer", "answers", "target", "completion"}, place);
  item.answers = answer.is_array() ? texts_of(answer, "the answers", place) : std::vector{text_of(answer, "the answer", place)};
  if (item.answers.empty()) place.refuse("no answer is right; give at least one");
  return item;
}

}  // namespace

std::vector<ChoiceItem> read_choices(const std::string& path, int64_t limit) { return read_items<ChoiceItem>(path, limit, choice_item); }
std::vector<AnswerItem> read_answers(const std::string& path, int64_t limit) { return read_items<AnswerItem>(path, limit, answer_item); }

}  // namespace cairn::evaluate
