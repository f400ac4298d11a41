#include "data/chat/assistant_turns.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace cairn::data {
namespace {

using base::OrderedJson;
using Rendered = std::optional<std::string>;

bool is_assistant(const OrderedJson& message) { return message["role"] == "assistant"; }

OrderedJson first_messages(const OrderedJson& messages, size_t count) {
  return OrderedJson(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count));
}

// The renderings of parts and variants of one conversation, with a limit on their total cost.
class Renderings {
 public:
  Renderings(const RenderMessages& render, const std::string& name) : render_(render), name_(name) {}

  // None where the template refuses the messages: many refuse a part of a conversation.
  Rendered operator()(const OrderedJson& messages, bool add_generation_prompt) {
    if (steps_ > kTurnSteps)
      base::fail_input(
          "{}: the conversation has too many turns for this template: finding those of the assistant takes more than {} steps. Mark them "
          "in the template with {{% generation %}} ... {{% endgeneration %}}, or divide the conversation.",
          name_, kTurnSteps);
    try {
      return render_(messages, add_generation_prompt, steps_);
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::bad_input) throw;
      return std::nullopt;
    }
  }

 private:
  const RenderMessages& render_;
  const std::string& name_;
  int64_t steps_ = 0;
};

ByteRange range_of(size_t first, size_t end) { return {static_cast<int64_t>(first), static_cast<int64_t>(end)}; }

// None where a turn cannot be found this way.
std::optional<std::vector<ByteRange>> find_turns_by_prefixes(const std::string& text, const OrderedJson& messages, Renderings& render) {
  std::vector<ByteRange> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!is_assistant(messages[i])) continue;
    const Rendered before = render(first_messages(messages, i), true);
    const Rendered after = render(first_messages(messages, i + 1), false);
    if (!before || !after || !text.starts_with(*after) || !after->starts_with(*before)) return std::nullopt;
    const ByteRange turn = range_of(before->size(), after->size());
    if (!turns.empty() && turn.first < turns.back().end) return std::nullopt;
    turns.push_back(turn);
  }
  return turns;
}

// The texts on both sides of a marker.
struct Sides {
  std::string before, after;
};

// None where the marker does not stand in the text exactly once.
std::optional<Sides> sides_of(const Rendered& text, const std::string& marker) {
  if (!text) return std::nullopt;
  const size_t at = text->find(marker);
  if (at == std::string::npos || text->find(marker, at + 1) != std::string::npos) return std::nullopt;
  return Sides{text->substr(0, at), text->substr(at + marker.size())};
}

// The string of a message that a marker replaces: its content, the first text of a content in parts, or the name of the function it calls.
OrderedJson& marked_field(OrderedJson& message) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_array())
    for (OrderedJson& part : *content)
      if (part.is_object() && part.contains("text")) return part["text"];
  const bool speaks = content != message.end() && content->is_string() && !content->get_ref<const std::string&>().empty();
  const auto calls = message.find("tool_calls");
  if (!speaks && calls != message.end() && calls->is_array() && !calls->empty() && (*calls)[0].is_object()) {
    OrderedJson& first = (*calls)[0];
    OrderedJson& call = first.contains("function") && first["function"].is_object() ? first["function"] : first;
    if (call.contains("name")) return call["name"];
  }
  return message["content"];
}

OrderedJson with_marker(OrderedJson messages, size_t at, const std::string& marker) {
  marked_field(messages[at]) = marker;
  return messages;
}

// How much of `closing` (what follows an answer that ends the conversation) also follows it where messages come after: what ends the turn.
// A part of a token or word that both happen to begin with does not count.
size_t shared_closing(std::string_view closing, std::string_view following) {
  const auto differs = std::mismatch(closing.begin(), closing.end(), following.begin(), following.end()).first;
  const auto shared = static_cast<size_t>(differs - closing.begin());
  if (shared == closing.size()) return shared;
  const size_t end = closing.substr(0, shared).find_last_of("\n>]");
  return end == std::string_view::npos ? 0 : end + 1;
}

class MarkedTurns {
 public:
  MarkedTurns(const std::string& text, const OrderedJson& messages, bool add_generation_prompt, Renderings& render)
      : text_(text),
        messages_(messages),
        add_generation_prompt_(add_generation_prompt),
        render_(render),
        answer_(unused("answer")),
        other_(unused("message")) {}

  // The turn of message `i`, or why it cannot be found.
  std::pair<ByteRange, std::string> find(size_t i) const {
    const OrderedJson marked = with_marker(messages_, i, answer_);
    const auto whole = sides_of(render_(marked, add_generation_prompt_), answer_);
    if (!whole) return {{}, "the template does not write its text exactly once"};
    const std::optional<std::string> closing = closing_of(marked, i);
    if (!closing) return {{}, "the template does not render the conversation up to it"};
    const size_t first = whole->before.size() - opening_of(marked, i, whole->before);
    if (text_.size() < first + whole->after.size() || !text_.starts_with(whole->before.substr(0, first)) || !text_.ends_with(whole->after))
      return {{}, "its text changes what the template writes around it"};
    return {range_of(first, text_.size() - whole->after.size() + shared_closing(*closing, whole->after)), ""};
  }

 private:
  // Letters only: templates trim, quote and escape other characters. The number of x doubles, so that a text full of x costs little; the
  // marker never overlaps itself, since "cairn" stands at its beginning alone.
  std::string unused(const std::string& word) const {
    std::string marker = "cairn" + word;
    for (size_t more = 1; text_.find(marker) != std::string::npos; more *= 2) marker.append(more, 'x');
    return marker;
  }

  // What the template writes after the text of message `i` where it is the last one.
  std::optional<std::string> closing_of(const OrderedJson& marked, size_t i) const {
    if (auto sides = sides_of(render_(first_messages(marked, i + 1), false), answer_)) return std::move(sides->after);
    const OrderedJson shortest = {{{"role", "user"}, {"content", "a"}}, marked[i]};
    if (auto sides = sides_of(render_(shortest, false), answer_)) return std::move(sides->after);
    return std::nullopt;
  }

  // How much of `before`, the text up to that of message `i`, the model writes itself: what the generation prompt does not give, such as
  // an empty block of thoughts or a space. Taken between the message before, which has a marker too, and this one.
  size_t opening_of(const OrderedJson& marked, size_t i, const std::string& before) const {
    if (i == 0) {
      const Rendered prompt = render_(OrderedJson::array(), true);
      return prompt && before.starts_with(*prompt) ? before.size() - prompt->size() : 0;
    }
    const OrderedJson both = with_marker(marked, i - 1, other_);
    const auto prompt = sides_of(render_(first_messages(both, i), true), other_);
    const auto whole = sides_of(render_(both, add_generation_prompt_), other_);
    if (!prompt || !whole) return 0;
    const auto between = sides_of(whole->after, answer_);
    if (!between || !between->before.starts_with(prompt->after)) return 0;
    const std::string opening = between->before.substr(prompt->after.size());
    return before.ends_with(opening) ? opening.size() : 0;
  }

  const std::string& text_;
  const OrderedJson& messages_;
  bool add_generation_prompt_;
  Renderings& render_;
  std::string answer_, other_;
};

std::vector<ByteRange> find_by_markers(const std::string& text, const OrderedJson& messages, bool add_generation_prompt, Renderings& render,
                                       const std::string& name) {
  const MarkedTurns marked(text, messages, add_generation_prompt, render);
  std::vector<ByteRange> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!is_assistant(messages[i])) continue;
    auto [turn, trouble] = marked.find(i);
    if (trouble.empty() && !turns.empty() && turn.first < turns.back().end) trouble = "it overlaps the one before";
    if (!trouble.empty())
      base::fail_input(
          "{}: message {}, of the assistant, cannot be found in the rendered conversation: {}. Mark it in the template with "
          "{{% generation %}} ... {{% endgeneration %}}.",
          name, i + 1, trouble);
    turns.push_back(turn);
  }
  return turns;
}

}  // namespace

std::vector<ByteRange> find_turns_by_markers(const std::string& text, const OrderedJson& messages, bool add_generation_prompt,
                                             const RenderMessages& render, const std::string& name) {
  Renderings renderings(render, name);
  return find_by_markers(text, messages, add_generation_prompt, renderings, name);
}

std::vector<ByteRange> find_assistant_turns(const std::string& text, const OrderedJson& messages, bool add_generation_prompt,
                                            const RenderMessages& render, const std::string& name) {
  Renderings renderings(render, name);
  auto turns = find_turns_by_prefixes(text, messages, renderings);
  if (!turns) turns = find_by_markers(text, messages, add_generation_prompt, renderings, name);
  std::erase_if(*turns, [](const ByteRange& turn) { return turn.first == turn.end; });
  return *std::move(turns);
}

}  // namespace cairn::data
