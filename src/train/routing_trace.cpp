#include "train/routing_trace.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <ATen/ops/topk.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/text.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "parallel/batch/local_batch.h"
#include "train/report/gather_texts.h"

namespace cairn::train {
namespace {

// One line for a token: "BLOCK KEY MARGIN EXPERT EXPERT ...".
std::string line_of(const std::pair<std::string, int64_t>& token, const RoutedToken& routed) {
  return fmt::format("{} {} {} {}\n", token.first, token.second, routed.margin, fmt::join(routed.experts, " "));
}

void read_line(std::string_view line, StepRouting& into) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin < line.size();) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  CAIRN_CHECK(words.size() > 3, "a line of a routing trace with {} words", words.size());
  const auto number = [](std::string_view text, auto value) {
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  RoutedToken token{.experts = {}, .margin = number(words[2], 0.0)};
  for (size_t i = 3; i < words.size(); ++i) token.experts.push_back(number(words[i], int64_t{0}));
  into.try_emplace({std::string(words[0]), number(words[1], int64_t{0})}, std::move(token));
}

}  // namespace

void RoutingRecorder::saw(std::string_view block, const at::Tensor& keys, const at::Tensor& scores, const at::Tensor& ids) {
  if (!keys.defined() || ids.size(0) == 0) return;
  CAIRN_CHECK(keys.numel() == ids.size(0), "{}: {} keys for {} tokens", block, keys.numel(), ids.size(0));
  const int64_t chosen = ids.size(1), experts = scores.size(1);
  const at::Tensor best = std::get<0>(at::topk(scores.to(at::kDouble).cpu(), std::min(chosen + 1, experts), 1));
  const at::Tensor where = keys.cpu().contiguous(), who = std::get<0>(ids.cpu().sort(1)).contiguous();
  for (int64_t t = 0; t < ids.size(0); ++t) {
    if (where.const_data_ptr<int64_t>()[t] < 0) continue;  // of a sample that nothing counts
    RoutedToken token;
    for (int64_t k = 0; k < chosen; ++k) token.experts.push_back(who.const_data_ptr<int64_t>()[t * chosen + k]);
    if (chosen < experts) token.margin = (best[t][chosen - 1] - best[t][chosen]).item<double>();
    seen_.try_emplace({std::string(block), where.const_data_ptr<int64_t>()[t]}, std::move(token));
  }
}

StepRouting RoutingRecorder::take(comm::World& world) {
  std::string own;
  for (const auto& [token, routed] : std::exchange(seen_, {})) own += line_of(token, routed);
  StepRouting all;
  for (const std::string& text : gather_texts(world.everyone(), own, "routing"))
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      read_line(std::string_view(text).substr(begin, end - begin), all);
      begin = end + 1;
    }
  return all;
}

std::string routing_difference(const StepRouting& one, const StepRouting& other) {
  int64_t tokens = 0, apart = 0;
  std::string first;
  for (const auto& [token, routed] : one) {
    const auto found = other.find(token);
    if (found == other.end()) continue;
    ++tokens;
    if (found->second.experts == routed.experts) continue;
    if (++apart > 1) continue;
    first = fmt::format("first in {} the token at {} of sample {}: {} and not {}, by a margin of {:.2g}", token.first,
                        token.second % parallel::kMaxPositions, token.second / parallel::kMaxPositions, fmt::join(routed.experts, ", "),
                        fmt::join(found->second.experts, ", "), found->second.margin);
  }
  if (apart == 0) return "";
  return fmt::format("{} of {} chose other experts; {}", base::plural(apart, "token"), tokens, first);
}

}  // namespace cairn::train
