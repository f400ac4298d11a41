// Renders conversations for tools/check_chat_templates.py: one JSON object a line in, {"text", "targets"} or {"error"} a line out.
#include <exception>
#include <iostream>
#include <string>

#include "base/json.h"
#include "data/chat/chat_template.h"

int main() {
  using cairn::base::OrderedJson;
  std::string line;
  while (std::getline(std::cin, line)) {
    const OrderedJson asked = cairn::base::parse_ordered_json(line);
    OrderedJson answer;
    try {
      const auto parsed = cairn::data::ChatTemplate::parse(asked["template"].get<std::string>());
      const cairn::data::Conversation conversation{.messages = asked["messages"], .tools = asked["tools"]};
      const cairn::data::ChatOptions options{
          .add_generation_prompt = asked["add_generation_prompt"].get<bool>(), .variables = asked["variables"], .date = {}};
      answer["text"] = parsed.render_text(conversation, options);
      if (asked["targets"].get<bool>()) {
        answer["targets"] = OrderedJson::array();
        for (const auto& range : parsed.render(conversation, options).targets) answer["targets"].push_back({range.first, range.end});
      }
    } catch (const std::exception& error) {
      answer["error"] = error.what();
    }
    std::cout << cairn::base::compact(answer) << std::endl;
  }
}
