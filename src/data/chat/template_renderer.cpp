#include "data/chat/template_renderer.h"

#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "data/chat/template_date.h"

namespace cairn::data {
namespace {

// The text as segments, split where targets begin and end.
std::vector<TextSegment> parts_of(const RenderedChat& chat) {
  std::vector<TextSegment> parts;
  int64_t at = 0;
  const auto add = [&](int64_t end, bool is_target) {
    if (end > at) parts.push_back({chat.text.substr(static_cast<size_t>(at), static_cast<size_t>(end - at)), is_target});
    at = end;
  };
  for (const ByteRange& target : chat.targets) {
    add(target.first, false);
    add(target.end, true);
  }
  add(static_cast<int64_t>(chat.text.size()), false);
  return parts;
}

}  // namespace

Renderer chat_renderer(ChatTemplate chat, ChatOptions options, const std::string& day) {
  if (options.date) base::fail_input("a chat template for training takes no date: the same text must come out tomorrow");
  options.add_generation_prompt = false;
  std::string identity =
      fmt::format("chat_template-{:016x}-{:016x}", base::checksum(chat.text()), base::checksum(base::compact(options.variables)));
  if (!day.empty() && reads_date(chat.text())) {
    options.date = date_on(day);
    identity += "-" + day;
  }
  return {.identity = std::move(identity),
          .render = [chat = std::move(chat), options = std::move(options)](std::span<const ChatMessage> messages) {
            Conversation conversation;
            for (const ChatMessage& message : messages)
              conversation.messages.push_back(base::OrderedJson{{"role", message.role}, {"content", message.content}});
            return parts_of(chat.render(conversation, options));
          }};
}

}  // namespace cairn::data
