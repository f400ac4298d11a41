#include "data/chat/chat_template.h"

#include <utility>

#include "base/check.h"
#include "data/jinja/evaluator.h"
#include "data/jinja/print.h"

namespace cairn::data {

struct ChatTemplate::Parsed {
  std::string name;
  std::string text;
  jinja::ParsedTemplate syntax;

  jinja::RenderedTemplate render(const Conversation& conversation, size_t messages, bool add_generation_prompt,
                                 const ChatOptions& options) const;
  void find_turns(const Conversation& conversation, const ChatOptions& options, RenderedChat& chat) const;
};

namespace {

// The first `count` messages.
base::OrderedJson first_of(const base::OrderedJson& messages, size_t count) {
  if (count == messages.size()) return messages;
  return base::OrderedJson(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count));
}

void check_conversation(const Conversation& conversation, const ChatOptions& options, const std::string& name) {
  if (!conversation.messages.is_array()) base::fail_input("{}: the messages are no list", name);
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const auto& message = conversation.messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
      base::fail_input("{}: message {} has no \"role\" that is a string", name, i + 1);
  }
  if (!conversation.tools.is_null() && !conversation.tools.is_array()) base::fail_input("{}: the tools are no list", name);
  if (!options.variables.is_object()) base::fail_input("{}: the variables are no JSON object", name);
}

}  // namespace

jinja::RenderedTemplate ChatTemplate::Parsed::render(const Conversation& conversation, size_t messages, bool add_generation_prompt,
                                                     const ChatOptions& options) const {
  jinja::TemplateBudget budget(name);
  std::vector<std::pair<std::string, jinja::Value>> variables;
  variables.emplace_back("messages", jinja::from_json(first_of(conversation.messages, messages), budget));
  variables.emplace_back("tools", jinja::from_json(conversation.tools, budget));
  variables.emplace_back("documents", jinja::None{});
  variables.emplace_back("add_generation_prompt", add_generation_prompt);
  for (const auto& [key, value] : options.variables.items()) variables.emplace_back(key, jinja::from_json(value, budget));
  return jinja::Evaluator(syntax.body, std::move(variables), options.date, budget).render();
}

// What each assistant message adds: the text up to and including it, minus the text before it with the generation prompt.
void ChatTemplate::Parsed::find_turns(const Conversation& conversation, const ChatOptions& options, RenderedChat& chat) const {
  const auto refuse = [&](size_t message, const char* why) {
    base::fail_input(
        "{}: what the assistant says in message {} cannot be told apart: {}; mark it in the template with "
        "{{% generation %}} ... {{% endgeneration %}}",
        name, message + 1, why);
  };
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    if (conversation.messages[i]["role"] != "assistant") continue;
    const std::string before = render(conversation, i, true, options).text;
    const std::string after = render(conversation, i + 1, false, options).text;
    if (!chat.text.starts_with(after)) refuse(i, "the template writes it differently once messages follow");
    if (!after.starts_with(before)) refuse(i, "it does not begin with the messages before it and the generation prompt");
    const ByteRange turn{static_cast<int64_t>(before.size()), static_cast<int64_t>(after.size())};
    if (turn.first == turn.end) continue;
    if (!chat.targets.empty() && turn.first < chat.targets.back().end) refuse(i, "it overlaps the one before");
    chat.targets.push_back(turn);
  }
}

ChatTemplate::ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& name) {
  jinja::TemplateBudget budget(name);
  jinja::ParsedTemplate syntax = jinja::parse_template(text, budget);
  return ChatTemplate(std::make_shared<const Parsed>(Parsed{name, std::string(text), std::move(syntax)}));
}

std::string ChatTemplate::render_text(const Conversation& conversation, const ChatOptions& options) const {
  check_conversation(conversation, options, parsed_->name);
  return parsed_->render(conversation, conversation.messages.size(), options.add_generation_prompt, options).text;
}

RenderedChat ChatTemplate::render(const Conversation& conversation, const ChatOptions& options) const {
  check_conversation(conversation, options, parsed_->name);
  jinja::RenderedTemplate rendered = parsed_->render(conversation, conversation.messages.size(), options.add_generation_prompt, options);
  RenderedChat chat{.text = std::move(rendered.text), .targets = {}};
  if (!marks_generation()) {
    parsed_->find_turns(conversation, options, chat);
    return chat;
  }
  for (const auto& [first, end] : rendered.generated)
    if (first < end) chat.targets.push_back({static_cast<int64_t>(first), static_cast<int64_t>(end)});
  return chat;
}

bool ChatTemplate::marks_generation() const { return parsed_->syntax.marks_generation; }
const std::string& ChatTemplate::text() const { return parsed_->text; }

}  // namespace cairn::data
