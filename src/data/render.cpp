#include "data/render.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "base/nearest.h"

namespace cairn::data {
namespace {

using Messages = std::span<const Message>;
using Parts = std::vector<Part>;

Parts render_chatml(Messages messages) {
  Parts parts;
  for (const Message& message : messages) {
    if (message.role == "assistant") {
      parts.push_back({"<|im_start|>assistant\n", false});
      parts.push_back({message.content + "<|im_end|>", true});
      parts.push_back({"\n", false});
    } else {
      parts.push_back({"<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n", false});
    }
  }
  return parts;
}

Parts render_alpaca(Messages messages) {
  Parts parts;
  std::string before = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n";
  for (const Message& message : messages) {
    if (message.role == "system") {
      before = message.content + "\n\n";
    } else if (message.role == "assistant") {
      parts.push_back({std::exchange(before, "") + "### Response:\n", false});
      parts.push_back({message.content, true});
    } else {
      if (!parts.empty()) before += "\n\n";
      before += "### Instruction:\n" + message.content + "\n\n";
    }
  }
  if (!before.empty()) parts.push_back({before, false});
  return parts;
}

Parts render_plain(Messages messages) {
  Parts parts;
  for (const Message& message : messages) {
    if (!parts.empty()) parts.push_back({"\n\n", false});
    parts.push_back({message.content, message.role == "assistant"});
  }
  return parts;
}

struct KnownRenderer {
  const char* name;
  Parts (*render)(Messages);
  std::span<const char* const> markers;
};

constexpr const char* kChatmlMarkers[] = {"<|im_start|>", "<|im_end|>"};

constexpr std::array kRenderers = {KnownRenderer{"chatml", render_chatml, kChatmlMarkers}, KnownRenderer{"alpaca", render_alpaca, {}},
                                   KnownRenderer{"plain", render_plain, {}}};

}  // namespace

Renderer make_renderer(const std::string& name) {
  for (const KnownRenderer& known : kRenderers)
    if (name == known.name) return {.identity = name, .render = known.render, .markers = {known.markers.begin(), known.markers.end()}};
  base::fail_unknown("data.template", name, renderer_names());
}

std::vector<std::string> renderer_names() {
  std::vector<std::string> names;
  for (const KnownRenderer& known : kRenderers) names.emplace_back(known.name);
  return names;
}

Renderer all_targets(Renderer renderer) {
  renderer.identity += "+prompts";
  renderer.render = [render = std::move(renderer.render)](Messages messages) {
    Parts parts = render(messages);
    for (Part& part : parts) part.is_target = true;
    return parts;
  };
  return renderer;
}

}  // namespace cairn::data
