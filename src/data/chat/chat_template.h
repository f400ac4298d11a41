// Chat templates of Hugging Face models: Jinja, rendered by our own interpreter (data/jinja), which can do nothing but produce text.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace cairn::data {

// The input of a template. A message is an object with "role", "content" and whatever else the template reads ("tool_calls", "name").
struct Conversation {
  base::OrderedJson messages = base::OrderedJson::array();
  base::OrderedJson tools = nullptr;  // a list of JSON schemas, or null where there are none
};

struct ChatOptions {
  bool add_generation_prompt = false;                            // end with the prefix of an assistant message
  base::OrderedJson variables = base::OrderedJson::object();     // more variables: bos_token, eos_token, enable_thinking, ...
  std::function<std::string(const std::string& format)> date{};  // strftime_now; empty: it is undefined
};

// Bytes from `first` up to `end`.
struct ByteRange {
  int64_t first = 0;
  int64_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

// A conversation as text, and the byte ranges that the assistant said: the training targets. In order, not empty, not overlapping.
struct RenderedChat {
  std::string text;
  std::vector<ByteRange> targets;
};

// A parsed template. An immutable value; threads may share it.
class ChatTemplate {
 public:
  // Refuses what cannot be parsed: "chat_template, line 3: unknown tag 'fro': did you mean 'for'?". Errors begin with `name`.
  static ChatTemplate parse(std::string_view text, const std::string& name = "chat_template");

  // The text alone, as transformers' apply_chat_template gives it.
  std::string render_text(const Conversation& conversation, const ChatOptions& options) const;

  // The text and its targets: what the {% generation %} blocks write or, in a template without them, the turn of each assistant message
  // (assistant_turns.h): what follows the generation prompt, with the tokens that end the turn.
  RenderedChat render(const Conversation& conversation, const ChatOptions& options) const;

  bool marks_generation() const;
  const std::string& text() const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed);
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace cairn::data
