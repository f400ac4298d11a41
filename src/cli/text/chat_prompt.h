#pragma once
#include <functional>
#include <string>
#include <vector>

#include "data/chat/renderer.h"

namespace cairn::cli {

using data::ChatMessage;

// Turns a conversation into the text that the model answers: up to where its answer begins.
using ChatRenderer = std::function<std::string(const std::vector<ChatMessage>&)>;

// <|im_start|>role ... <|im_end|>, as many models were tuned with. Used where a directory has no template of its own.
std::string render_chatml(const std::vector<ChatMessage>& messages);
inline constexpr const char* kChatmlEnd = "<|im_end|>";

// By the chat template in a model's folder, else ChatML.
ChatRenderer chat_renderer(const std::string& folder);

}  // namespace cairn::cli
