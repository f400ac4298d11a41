// Where the assistant's messages stand in a rendered conversation, for templates without {% generation %} blocks.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/chat/chat_template.h"

namespace cairn::data {

// Renders messages with everything else fixed, and adds the steps that it took (jinja::TemplateBudget) to `steps`, also where it fails.
// Throws bad_input where the template refuses the messages.
using RenderMessages = std::function<std::string(const base::OrderedJson& messages, bool add_generation_prompt, int64_t& steps)>;

// Limit on the steps of all renderings that the turns of one conversation take: their number grows with the turns, and so does the length
// of each.
inline constexpr int64_t kTurnSteps = 100'000'000;

// The turn of each assistant message in `text`, which is render(messages, add_generation_prompt): what the model writes after the
// generation prompt, up to and including what ends the turn. Refuses, beginning with `name`, a message whose turn cannot be found, and more
// work than kTurnSteps.
//
// Two ways, the first that works for the whole conversation:
//   prefixes   the rendering up to and including the message, minus the rendering before it with the generation prompt. It works where
//              later messages leave the rendering of earlier ones unchanged.
//   markers    the message's content is replaced by a marker that stands nowhere else. The text on both sides of the marker must be that
//              of `text`; what lies between is the content as the template writes it.
std::vector<ByteRange> find_assistant_turns(const std::string& text, const base::OrderedJson& messages, bool add_generation_prompt,
                                            const RenderMessages& render, const std::string& name);

// The second way alone: tests compare it with the first.
std::vector<ByteRange> find_turns_by_markers(const std::string& text, const base::OrderedJson& messages, bool add_generation_prompt,
                                             const RenderMessages& render, const std::string& name);

}  // namespace cairn::data
