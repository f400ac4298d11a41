#include "data/chat/chat_template.h"

#include <utility>

#include "base/check.h"
#include "data/chat/assistant_turns.h"
#include "data/jinja/evaluator.h"
#include "data/jinja/print.h"

namespace cairn::data {

struct ChatTemplate::Parsed {
  std::string name;
  std::string text;
  jinja::ParsedTemplate syntax;

  // Adds the steps that it took to `steps`, also where it fails.
  jinja::RenderedTemplate render(const base::OrderedJson& messages, const base::OrderedJson& tools, bool add_generation_prompt,
                                 const ChatOptions& options, int64_t& steps) const;
};

namespace {

// Adds a budget's steps to a total at the end of its scope.
class CountSteps {
 public:
  CountSteps(const jinja::TemplateBudget& budget, int64_t& total) : budget_(budget), total_(total) {}
  ~CountSteps() { total_ += budget_.steps(); }
  CountSteps(const CountSteps&) = delete;
  CountSteps& operator=(const CountSteps&) = delete;

 private:
  const jinja::TemplateBudget& budget_;
  int64_t& total_;
};

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

jinja::RenderedTemplate ChatTemplate::Parsed::render(const base::OrderedJson& messages, const base::OrderedJson& tools,
                                                     bool add_generation_prompt, const ChatOptions& options, int64_t& steps) const {
  jinja::TemplateBudget budget(name);
  const CountSteps count(budget, steps);
  std::vector<std::pair<std::string, jinja::Value>> variables;
  variables.emplace_back("messages", jinja::from_json(messages, budget));
  variables.emplace_back("tools", jinja::from_json(tools, budget));
  variables.emplace_back("documents", jinja::None{});
  variables.emplace_back("add_generation_prompt", add_generation_prompt);
  for (const auto& [key, value] : options.variables.items()) variables.emplace_back(key, jinja::from_json(value, budget));
  return jinja::Evaluator(syntax.body, std::move(variables), options.date, budget).render();
}

ChatTemplate::ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& name) {
  jinja::TemplateBudget budget(name);
  jinja::ParsedTemplate syntax = jinja::parse_template(text, budget);
  return ChatTemplate(std::make_shared<const Parsed>(Parsed{name, std::string(text), std::move(syntax)}));
}

std::string ChatTemplate::render_text(const Conversation& conversation, const ChatOptions& options) const {
  check_conversation(conversation, options, parsed_->name);
  int64_t steps = 0;
  return parsed_->render(conversation.messages, conversation.tools, options.add_generation_prompt, options, steps).text;
}

RenderedChat ChatTemplate::render(const Conversation& conversation, const ChatOptions& options) const {
  check_conversation(conversation, options, parsed_->name);
  int64_t first_steps = 0;
  jinja::RenderedTemplate rendered =
      parsed_->render(conversation.messages, conversation.tools, options.add_generation_prompt, options, first_steps);
  RenderedChat chat{.text = std::move(rendered.text), .targets = {}};
  if (!marks_generation()) {
    const RenderMessages again = [&](const base::OrderedJson& messages, bool add_generation_prompt, int64_t& steps) {
      return parsed_->render(messages, conversation.tools, add_generation_prompt, options, steps).text;
    };
    chat.targets = find_assistant_turns(chat.text, conversation.messages, options.add_generation_prompt, again, parsed_->name);
    return chat;
  }
  for (const auto& [first, end] : rendered.generated)
    if (first < end) chat.targets.push_back({static_cast<int64_t>(first), static_cast<int64_t>(end)});
  return chat;
}

bool ChatTemplate::marks_generation() const { return parsed_->syntax.marks_generation; }
const std::string& ChatTemplate::text() const { return parsed_->text; }

}  // namespace cairn::data
