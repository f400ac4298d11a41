// One JSON object of a data set, whichever of the usual forms it has.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/renderer.h"

namespace cairn::data {

// What a record holds, told by its fields:
//   text         "text" (or the field that data.text_field names)
//   messages     "messages" [{"role", "content"}], "conversations" [{"from", "value"}], Alpaca's "instruction", "input", "output",
//                and the pairs "prompt"/"completion" (or "response") and "question"/"answer"
//   preference   "chosen" and "rejected", with "prompt", "messages" or "conversations" before them, or whole conversations on each side
struct Record {
  enum class Kind { text, messages, preference };
  Kind kind = Kind::text;
  std::string text = {};
  std::vector<ChatMessage> messages = {};  // of a preference: prompt and chosen answer
  std::vector<ChatMessage> rejected = {};  // of a preference: prompt and rejected answer
};

// Reads one record. Returns why it is no good ("invalid JSON at byte 17", "no field …"), or nothing where it is. Never recurses:
// a text that is nested deeply is refused as soon as that is seen.
std::string parse_record(std::string_view json, const std::string& text_field, Record& into);

}  // namespace cairn::data
