// How a conversation becomes text to train on, and which stretches of it the model is asked for.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace cairn::data {

// One turn of a conversation; `role` is system, user, assistant or tool.
struct ChatMessage {
  std::string role;
  std::string content;
  bool operator==(const ChatMessage&) const = default;
};

// A stretch of text that is asked for (a target) or only read.
struct TextSegment {
  std::string text;
  bool is_target = true;
  bool operator==(const TextSegment&) const = default;
};

// Turns messages into parts. `identity` names all that decides the result, for caches: two renderers with one identity render alike.
// `render` is called from several threads at once, and refuses with bad_input what it cannot render.
struct Renderer {
  std::string identity;
  std::function<std::vector<TextSegment>(std::span<const ChatMessage>)> render;
  std::vector<std::string> markers = {};  // texts that it writes and that a tokenizer must have as special tokens
};

// A chat template that comes with Cairn, for models that have none of their own. What the assistant says is a target, with the token that
// ends it.
//   chatml  <|im_start|>role\ncontent<|im_end|>\n for each message.
//   alpaca  the prompt of Stanford's Alpaca: "### Instruction:", "### Response:"; eos_token ends a response.
//   plain   the contents, one after the other, with an empty line between them; eos_token ends what the assistant says.
struct BuiltInTemplate {
  std::string name;  // in data.template
  std::string text;  // Jinja, with {% generation %} blocks
  std::vector<std::string> markers;
};
const std::vector<BuiltInTemplate>& built_in_templates();
// An unknown name is refused, and the nearest one named.
const BuiltInTemplate& built_in_template(const std::string& name);

// Its renderer for a tokenizer in which `end` is the text of the token that ends a document.
Renderer make_renderer(const std::string& name, const std::string& end = "<|endoftext|>");

// The same text with every part a target: training on prompts too.
Renderer all_targets(Renderer renderer);

}  // namespace cairn::data
