// Which template turns the conversations of a run into text: what data.template says, the model's own, or one that comes with Cairn.
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
  std::string folder;   // of the tokenizer, where what is known of it lies beside it; empty: there is none
  std::string end;      // the text of eos_token, which the template may write
  bool is_own = false;  // the tokenizer's folder has it as its usual template already
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

// Refuses a word of data.template that means nothing, and names the nearest that does.
void check_template_word(const std::string& word);

// Refuses a template whose markers the tokenizer does not have: they would be spelled out in ordinary tokens, and an answer would have no
// end that other programs see.
void check_markers(const ChatFormat& format, const Tokenizer& tokenizer);

// The token after which an answer is complete: the first special one in what the assistant says; nothing where the template writes none.
std::optional<int32_t> end_of_answer(const ChatFormat& format, const Tokenizer& tokenizer);

}  // namespace cairn::data
