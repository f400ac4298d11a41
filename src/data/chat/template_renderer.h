// A chat template as a Renderer for training data.
#pragma once
#include "data/chat/chat_template.h"
#include "data/chat/renderer.h"

namespace cairn::data {

// Renders messages with the template; assistant messages are targets. `options` gives the template's variables; a generation prompt is
// never added. `day` is the date that strftime_now tells ("2026-01-31"); empty: it is undefined. options.date is refused: text that
// changes with the date would not match its identity.
Renderer chat_renderer(ChatTemplate chat, ChatOptions options, const std::string& day = "");

}  // namespace cairn::data
