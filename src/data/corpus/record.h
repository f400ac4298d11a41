// One JSON record of a data set, in any of the usual formats.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/renderer.h"

namespace cairn::data {

// The content of a record. Its fields decide the kind:
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

// Reads one record. Returns the reason why it is unusable ("invalid JSON at byte 17", "no field …"), or an empty string. Never recurses:
// deeply nested text is refused early.
std::string parse_record(std::string_view json, const std::string& text_field, Record& into);

}  // namespace cairn::data
