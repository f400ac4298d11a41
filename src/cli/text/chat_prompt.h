#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/chat/renderer.h"

namespace cairn::cli {

using data::ChatMessage;

// Renders a conversation as the model's prompt, up to where its answer begins.
using ChatRenderer = std::function<std::string(const std::vector<ChatMessage>&)>;

// ChatML: <|im_start|>role ... <|im_end|>. Used if a directory has no chat template.
std::string render_chatml(const std::vector<ChatMessage>& messages);
inline constexpr const char* kChatmlEnd = "<|im_end|>";

// Renders by the chat template in the model's folder, or by ChatML if there is none.
ChatRenderer chat_renderer(const std::string& folder);

}  // namespace cairn::cli
