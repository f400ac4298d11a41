#include "data/corpus/record.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/json.h"
#include "data/tokenizer/utf8_check.h"

namespace cairn::data {
namespace {

using base::Json;

constexpr int kRecordDepth = 64;

// Bound on the memory of a parsed record beside its text: enough for any list of messages, and a limit for hostile nesting.
base::JsonLimits limits_of(std::string_view json) {
  const auto bytes = static_cast<int64_t>(json.size());
  return {.depth = kRecordDepth, .tree_bytes = (int64_t{64} << 20) + 2 * bytes, .string_bytes = bytes};
}

// Why a record is unusable; thrown out of the nested readers.
struct BadRecord {
  std::string why;
};

const char* kind_of(const Json& value) { return value.type_name(); }

const std::string& text_of(const Json& value, const std::string& name) {
  if (!value.is_string())
    throw BadRecord{
        fmt::format("field \"{}\" holds {} {}, not a string", name, value.is_array() || value.is_object() ? "an" : "a", kind_of(value))};
  return value.get_ref<const std::string&>();
}

// The string under `name`; without it, `fallback` where there is one.
std::string field(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) throw BadRecord{fmt::format("no field \"{}\"", name)};
  return text_of(*found, name);
}

std::string role_of(const std::string& name) {
  static constexpr std::array<std::array<const char*, 2>, 4> kShareGpt = {
      {{"human", "user"}, {"gpt", "assistant"}, {"bot", "assistant"}, {"model", "assistant"}}};
  for (const auto& [from, to] : kShareGpt)
    if (name == from) return to;
  return name;
}

ChatMessage message_of(const Json& value, const std::string& list) {
  if (!value.is_object()) throw BadRecord{fmt::format("field \"{}\" holds a {}, not messages", list, kind_of(value))};
  if (value.contains("from") && value.contains("value")) return {role_of(field(value, "from")), field(value, "value")};
  if (const auto calls = value.find("tool_calls"); calls != value.end() && !calls->empty())
    throw BadRecord{"a message has \"tool_calls\", which would be lost: write the calls into \"content\", as the model shall write them"};
  return {role_of(field(value, "role")), field(value, "content")};
}

std::vector<ChatMessage> messages_of(const Json& value, const std::string& name) {
  if (!value.is_array())
    throw BadRecord{fmt::format("field \"{}\" holds {} {}, not a list of messages", name, value.is_object() ? "an" : "a", kind_of(value))};
  if (value.empty()) throw BadRecord{fmt::format("field \"{}\" is empty", name)};
  std::vector<ChatMessage> messages;
  for (const Json& one : value) messages.push_back(message_of(one, name));
  return messages;
}

// One side of a preference: a string, a message, or a whole conversation.
std::vector<ChatMessage> side_of(const Json& record, const std::string& name, const std::vector<ChatMessage>& before) {
  const Json& value = record[name];
  if (value.is_array()) {
    std::vector<ChatMessage> whole = messages_of(value, name);
    if (before.empty() || whole.size() > 1) return whole;
    std::vector<ChatMessage> messages = before;
    messages.push_back(whole[0]);
    return messages;
  }
  std::vector<ChatMessage> messages = before;
  messages.push_back(value.is_object() ? message_of(value, name) : ChatMessage{"assistant", text_of(value, name)});
  return messages;
}

void append_pair(const Json& object, const std::string& question, const std::string& answer, std::vector<ChatMessage>& into) {
  if (object.contains("system") && object["system"].is_string() && !object["system"].get_ref<const std::string&>().empty())
    into.push_back({"system", object["system"]});
  std::string asked = field(object, question);
  if (question == "instruction" && object.contains("input"))
    if (const std::string& input = text_of(object["input"], "input"); !input.empty()) asked += "\n\n" + input;
  into.push_back({"user", std::move(asked)});
  into.push_back({"assistant", field(object, answer)});
}

std::string names_of(const Json& object) {
  std::string names;
  for (const auto& [name, value] : object.items()) {
    if (names.size() > 80) return names + ", …";
    names += (names.empty() ? "" : ", ") + name.substr(0, 40);
  }
  return names;
}

void read_preference(const Json& object, Record& into) {
  std::vector<ChatMessage> before;
  for (const char* list : {"messages", "conversations"})
    if (object.contains(list)) before = messages_of(object[list], list);
  if (object.contains("prompt")) {
    const Json& prompt = object["prompt"];
    if (prompt.is_array())
      before = messages_of(prompt, "prompt");
    else
      before.push_back({"user", text_of(prompt, "prompt")});
  }
  if (!object.contains("rejected")) throw BadRecord{"no field \"rejected\" beside \"chosen\""};
  into.kind = Record::Kind::preference;
  into.messages = side_of(object, "chosen", before);
  into.rejected = side_of(object, "rejected", before);
}

void read_object(const Json& object, const std::string& text_field, Record& into) {
  static constexpr std::array<std::array<const char*, 2>, 4> kPairs = {
      {{"instruction", "output"}, {"prompt", "completion"}, {"prompt", "response"}, {"question", "answer"}}};
  into.messages.clear();
  into.rejected.clear();
  if (object.contains("chosen")) return read_preference(object, into);
  into.kind = Record::Kind::messages;
  for (const char* list : {"messages", "conversations"})
    if (object.contains(list)) return void(into.messages = messages_of(object[list], list));
  if (object.contains(text_field)) {
    into.kind = Record::Kind::text;
    return void(into.text = field(object, text_field));
  }
  if (const auto label = object.find("label");
      label != object.end() && label->is_boolean() && !label->get<bool>() && object.contains("prompt"))
    throw BadRecord{
        "\"label\" is false: a rejected answer without its chosen one (KTO's data), which is not supported. Use preference pairs "
        "(\"chosen\" and \"rejected\", data.kind = \"preference\"), or train on the records with \"label\": true alone"};
  for (const auto& [question, answer] : kPairs)
    if (object.contains(question) && object.contains(answer)) return append_pair(object, question, answer, into.messages);
  throw BadRecord{
      fmt::format("no field \"{}\", \"messages\", \"instruction\" with \"output\", or \"chosen\" with \"rejected\" (it has: {})",
                  text_field, object.empty() ? "none" : names_of(object))};
}

}  // namespace

std::string parse_record(std::string_view json, const std::string& text_field, Record& into) {
  if (const size_t wrong = first_invalid_utf8(json); wrong != std::string_view::npos)
    return fmt::format("invalid UTF-8 at byte {}", wrong + 1);
  const base::GuardedJson read = base::parse_json_guarded(json, limits_of(json));
  if (read.too_deep) return fmt::format("JSON nested more than {} deep", kRecordDepth);
  if (read.invalid_at) return fmt::format("invalid JSON at byte {}", *read.invalid_at);
  if (!read.trouble.empty()) return "invalid JSON: " + read.trouble;
  if (!read.value.is_object()) return fmt::format("not a JSON object but {} {}", read.value.is_array() ? "an" : "a", kind_of(read.value));
  try {
    read_object(read.value, text_field, into);
  } catch (const BadRecord& bad) {
    return bad.why;
  }
  return "";
}

}  // namespace cairn::data
