// Renders conversations as text to train on, and marks which segments are training targets.
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

// A segment of text that is a training target, or context only.
struct TextSegment {
  std::string text;
  bool is_target = true;
  bool operator==(const TextSegment&) const = default;
};

// Turns messages into segments. `identity` covers everything that decides the result, for cache keys: renderers with one identity render
// the same. `render` is called from several threads at once and throws bad_input for what it cannot render.
struct Renderer {
  std::string identity;
  std::function<std::vector<TextSegment>(std::span<const ChatMessage>)> render;
  std::vector<std::string> markers = {};  // texts that must be special tokens of the tokenizer
};

// A chat template that comes with Cairn, for models without one. Assistant messages are targets, with the token that ends them.
//   chatml  <|im_start|>role\ncontent<|im_end|>\n for each message.
//   alpaca  the prompt of Stanford's Alpaca: "### Instruction:", "### Response:"; eos_token ends a response.
//   plain   the contents, one after the other, with an empty line between them; eos_token ends an assistant message.
struct BuiltInTemplate {
  std::string name;  // in data.template
  std::string text;  // Jinja, with {% generation %} blocks
  std::vector<std::string> markers;
};
const std::vector<BuiltInTemplate>& built_in_templates();
// Refuses an unknown name and suggests the nearest.
const BuiltInTemplate& built_in_template(const std::string& name);

// Its renderer for a tokenizer in which `end` is the text of the token that ends a document.
Renderer make_renderer(const std::string& name, const std::string& end = "<|endoftext|>");

// The same text with every segment a target: trains on prompts too.
Renderer all_targets(Renderer renderer);

}  // namespace cairn::data
