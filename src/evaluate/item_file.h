// The items of an evaluation task: JSON lines, with the field names of common data sets.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::evaluate {

// A multiple-choice item. Fields: "context", "ctx", "question", "query" or "prompt" (a "context" and a "question" are both
// shown, one above the other); "choices", "endings" or "options" (a list of texts, or {"text": [...], "label": [...]}); "answer", "label",
// "gold" or "answerKey": the place of the right one from 0, or its label, its text, its letter, or its place as a text, the first that
// fits.
struct ChoiceItem {
  std::string context;
  std::vector<std::string> choices;
  int64_t gold = 0;
  int64_t line = 0;  // in the file, from 1
};

// A prompt and its correct answers. Fields: "prompt", "question", "input" or "context"; "answer", "answers", "target" or
// "completion": a text, a number, or a list of them.
struct AnswerItem {
  std::string prompt;
  std::vector<std::string> answers;
  int64_t line = 0;
};

// The first `limit` items of a file (0: all). Refuses a line that is not an item, with its number and the reason, and a file without items.
std::vector<ChoiceItem> read_choices(const std::string& path, int64_t limit = 0);
std::vector<AnswerItem> read_answers(const std::string& path, int64_t limit = 0);

}  // namespace cairn::evaluate
