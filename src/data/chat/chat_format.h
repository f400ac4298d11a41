// The chat template of a run: the one data.template names, the model's own, or one that comes with Cairn.
#pragma once
#include <optional>
#include <string>

#include "data/chat/renderer.h"

namespace cairn::data {

class Tokenizer;
struct DataOptions;

struct ChatFormat {
  std::string name;     // "chatml", or the file that the template was read from
  std::string text;     // of the template
  std::string folder;   // of the tokenizer and the files beside it; empty: none
  std::string end;      // the text of eos_token, which the template may write
  bool is_own = false;  // it is already the default template of the tokenizer's folder
  Renderer renderer = {};
};

// The template that data.template names:
//   auto         the one in the tokenizer's folder (chat_template.jinja, tokenizer_config.json), else chatml where the tokenizer has its
//                markers, else alpaca, which needs none
//   model        the one in the tokenizer's folder, refused where there is none
//   chatml, alpaca, plain
//   FILE.jinja   a file
// `tokenizer` is null where one will be learned: it then has all markers.
ChatFormat choose_chat_format(const DataOptions& data, const Tokenizer* tokenizer);

// Whether the template asks for the date, and data.template_date is unset: strftime_now is then undefined in the template. A command that
// trains or evaluates sets the key to the day on which it starts.
bool needs_template_date(const DataOptions& data);

// Refuses an unknown word of data.template and suggests the nearest, and a data.template_date that is no date.
void check_template_keys(const DataOptions& data);

// Refuses a template whose markers are no special tokens of the tokenizer: they would become ordinary tokens, and other programs could not
// see where an answer ends.
void check_markers(const ChatFormat& format, const Tokenizer& tokenizer);

// The token that ends an answer: the first special token that the template writes in an assistant message; none where it writes none.
std::optional<int32_t> end_of_answer(const ChatFormat& format, const Tokenizer& tokenizer);

}  // namespace cairn::data
