// A chat template as the renderer that data sets of conversations are read with.
#pragma once
#include "data/chat/chat_template.h"
#include "data/chat/renderer.h"

namespace cairn::data {

// Renders messages with the template; the assistant's part of the text is the target. `options` say which variables the template sees; a
// generation prompt is never added. Text that changes with the date would not be named by the identity, so options.date is refused.
Renderer chat_renderer(ChatTemplate chat, ChatOptions options);

}  // namespace cairn::data
