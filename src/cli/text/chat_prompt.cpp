#include "cli/text/chat_prompt.h"

#include <memory>

#include "base/clock.h"
#include "data/chat/chat_template.h"
#include "data/chat/template_date.h"
#include "data/tokenizer/tokenizer_config.h"

namespace cairn::cli {
namespace {

// Today's date: some templates tell it to the model.
std::string today(const std::string& format) { return data::format_time(data::local_time(base::wall_time()), format); }

}  // namespace

std::string render_chatml(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) text += "<|im_start|>" + message.role + "\n" + message.content + kChatmlEnd + "\n";
  return text + "<|im_start|>assistant\n";
}

ChatRenderer chat_renderer(const std::string& folder) {
  const data::TokenizerConfig config = data::open_tokenizer_config(folder);
  const std::optional<std::string> text = config.chat_template();
  if (!text) return render_chatml;
  const data::ChatOptions options{.add_generation_prompt = true, .variables = config.template_variables(), .date = today};
  return [options, parsed = data::ChatTemplate::parse(*text, folder + ": chat_template")](const std::vector<ChatMessage>& messages) {
    data::Conversation conversation;
    for (const ChatMessage& message : messages)
      conversation.messages.push_back(base::OrderedJson{{"role", message.role}, {"content", message.content}});
    return parsed.render_text(conversation, options);
  };
}

}  // namespace cairn::cli
