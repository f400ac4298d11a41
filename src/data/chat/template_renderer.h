// A chat template as a Renderer for training data.
#pragma once
#include "data/chat/chat_template.h"
#include "data/chat/renderer.h"

namespace cairn::data {

// Renders messages with the template; assistant messages are targets. `options` gives the template's variables; a generation prompt is
// never added. options.date is refused: text that changes with the date would not match its identity.
Renderer chat_renderer(ChatTemplate chat, ChatOptions options);

}  // namespace cairn::data
