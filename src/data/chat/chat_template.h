// Chat templates of Hugging Face models: Jinja, rendered by our own interpreter, which can do nothing but make text.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace cairn::data {

// What is rendered. A message is an object with "role", "content" and whatever else the template looks at ("tool_calls", "name").
struct Conversation {
  base::OrderedJson messages = base::OrderedJson::array();
  base::OrderedJson tools = nullptr;  // a list of JSON schemas, or null where there are none
};

struct ChatOptions {
  bool add_generation_prompt = false;                            // end with what comes before an answer of the assistant
  base::OrderedJson variables = base::OrderedJson::object();     // more for the template: bos_token, eos_token, enable_thinking, ...
  std::function<std::string(const std::string& format)> date{};  // strftime_now; without it templates take their fixed date, or are refused
};

// Bytes from `first` up to `end`.
struct ByteRange {
  int64_t first = 0;
  int64_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

// A conversation as text, and which stretches of it the assistant said: what a model is asked for. In order, none empty, none overlapping.
struct RenderedChat {
  std::string text;
  std::vector<ByteRange> targets;
};

// One template, parsed. A value that may be used from several threads at once.
class ChatTemplate {
 public:
  // Refuses what cannot be parsed: "chat_template, line 3: unknown tag 'fro': did you mean 'for'?". `name` is what complaints begin with.
  static ChatTemplate parse(std::string_view text, const std::string& name = "chat_template");

  // The text alone, as transformers' apply_chat_template gives it.
  std::string render_text(const Conversation& conversation, const ChatOptions& options) const;

  // The text and the assistant's part of it: what the template's {% generation %} blocks write, or, in a template without any, what each
  // assistant message adds to the messages before it and the generation prompt. Refused where that cannot be told, because the
  // template writes earlier messages differently once later ones follow.
  RenderedChat render(const Conversation& conversation, const ChatOptions& options) const;

  bool marks_generation() const;
  const std::string& text() const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed);
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace cairn::data
