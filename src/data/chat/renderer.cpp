#include "data/chat/renderer.h"

#include <utility>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "data/chat/template_renderer.h"

namespace cairn::data {
namespace {

constexpr const char* kChatml =
    R"({% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %})"
    R"({{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %})"
    R"({{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %})"
    R"({% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

constexpr const char* kAlpaca =
    R"({% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n\n' }}{% else %})"
    R"({{ 'Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n' }}{% endif %})"
    R"({% for message in messages %}{% if message['role'] == 'assistant' %}{{ '### Response:\n' }}{% generation %})"
    R"({{ message['content'] + eos_token }}{% endgeneration %}{{ '' if loop.last else '\n\n' }})"
    R"({% elif message['role'] != 'system' or not loop.first %}{{ '### Instruction:\n' + message['content'] + '\n\n' }}{% endif %})"
    R"({% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %})";

constexpr const char* kPlain =
    R"({% for message in messages %}{{ '' if loop.first else '\n\n' }}{% if message['role'] == 'assistant' %}{% generation %})"
    R"({{ message['content'] + eos_token }}{% endgeneration %}{% else %}{{ message['content'] }}{% endif %}{% endfor %})"
    R"({% if add_generation_prompt %}{{ '\n\n' }}{% endif %})";

}  // namespace

const std::vector<BuiltInTemplate>& built_in_templates() {
  static const std::vector<BuiltInTemplate> list = {
      {"chatml", kChatml, {"<|im_start|>", "<|im_end|>"}}, {"alpaca", kAlpaca, {}}, {"plain", kPlain, {}}};
  return list;
}

const BuiltInTemplate& built_in_template(const std::string& name) {
  std::vector<std::string> names = {"auto", "model"};
  for (const BuiltInTemplate& one : built_in_templates()) {
    if (one.name == name) return one;
    names.push_back(one.name);
  }
  base::fail_unknown("data.template", name, names);
}

Renderer make_renderer(const std::string& name, const std::string& end) {
  const BuiltInTemplate& one = built_in_template(name);
  Renderer renderer = chat_renderer(ChatTemplate::parse(one.text, name), {.variables = {{"eos_token", end}}});
  renderer.markers = one.markers;
  return renderer;
}

Renderer all_targets(Renderer renderer) {
  renderer.identity += "+prompts";
  renderer.render = [render = std::move(renderer.render)](std::span<const ChatMessage> messages) {
    std::vector<TextSegment> parts = render(messages);
    for (TextSegment& part : parts) part.is_target = true;
    return parts;
  };
  return renderer;
}

}  // namespace cairn::data
