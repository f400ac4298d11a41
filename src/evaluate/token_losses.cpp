#include "evaluate/token_losses.h"

#include <algorithm>
#include <numeric>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "mesh/axes.h"
#include "model/call.h"

namespace cairn::evaluate {
namespace {

constexpr int64_t kLogitBytesMax = 64 << 20;  // at a time

// The hidden states that the last block reads, [rows, length, embed].
at::Tensor hidden_of(const EvaluatedModel& evaluated, const at::Tensor& tokens, const model::Call& call) {
  model::Values values;
  values.put("tokens", tokens);
  const auto& blocks = evaluated.model.blocks();
  for (size_t i = 0; i + 1 < blocks.size(); ++i) blocks[i]->forward(values, nullptr, call);
  return values.take(blocks.back()->card().reads.front());
}

}  // namespace

std::vector<std::vector<float>> token_losses(const EvaluatedModel& evaluated, std::span<const ScoredTokens> rows) {
  if (rows.empty()) return {};
  at::NoGradGuard no_grad;
  int64_t longest = 0;
  for (const ScoredTokens& row : rows) {
    const auto size = static_cast<int64_t>(row.tokens.size());
    CAIRN_CHECK(row.first >= 1 && row.first <= size && size - 1 <= evaluated.length,
                "{} tokens, scored from {} on, by a model with a context of {}", size, row.first, evaluated.length);
    longest = std::max(longest, size - 1);
  }
  // Shorter rows are padded at the end, which scored positions do not attend to.
  const auto count = static_cast<int64_t>(rows.size());
  const at::Tensor tokens = at::zeros({count, std::max<int64_t>(longest, 1)}, at::kLong);
  std::vector<int64_t> places, targets;  // flat positions of the scored tokens, and their ids
  for (int64_t r = 0; r < count; ++r) {
    const ScoredTokens& row = rows[static_cast<size_t>(r)];
    int64_t* into = tokens.mutable_data_ptr<int64_t>() + r * tokens.size(1);
    std::copy(row.tokens.begin(), row.tokens.end() - 1, into);
    for (auto i = static_cast<size_t>(row.first); i < row.tokens.size(); ++i) {
      places.push_back(r * tokens.size(1) + static_cast<int64_t>(i) - 1);
      targets.push_back(row.tokens[i]);
    }
  }
  const mesh::Axes alone;
  const model::Call call{.weights = evaluated.weights, .buffers = evaluated.buffers, .axes = alone, .random = {}, .needs = {false, false}};
  const model::Block& last = *evaluated.model.blocks().back();
  const at::Device device = evaluated.weights.get({0}).device();
  const at::Tensor hidden = hidden_of(evaluated, tokens.to(device), call);
  const at::Tensor asked = hidden.view({-1, hidden.size(-1)}).index_select(0, at::tensor(places, at::kLong).to(device));
  const auto all = static_cast<int64_t>(targets.size());
  std::vector<float> losses(targets.size());
  for (int64_t done = 0, part = 1; done < all; done += part) {
    model::Values values;
    part = std::min(all - done, std::max<int64_t>(1, kLogitBytesMax / (4 * evaluated.vocab)));
    values.put(last.card().reads.front(), asked.narrow(0, done, part).unsqueeze(0));
    last.forward(values, nullptr, call);
    const at::Tensor logits = values.take("logits").view({part, -1});
    const at::Tensor loss = at::empty({part}, logits.options().dtype(at::kFloat)), lse = at::empty_like(loss);
    const at::Tensor wanted = at::tensor(at::IntArrayRef(targets.data() + done, static_cast<size_t>(part)), at::kLong);
    kernels::cross_entropy(loss, lse, logits, wanted.to(device));
    std::copy_n(loss.cpu().const_data_ptr<float>(), part, losses.begin() + done);
  }
  std::vector<std::vector<float>> by_row;
  auto next = losses.begin();
  for (const ScoredTokens& row : rows) {
    const auto end = next + static_cast<std::ptrdiff_t>(row.tokens.size()) - row.first;
    by_row.emplace_back(next, end);
    next = end;
  }
  return by_row;
}

std::vector<std::vector<float>> token_losses(const EvaluatedModel& evaluated, std::span<const ScoredTokens> rows, int64_t batch,
                                             const OnProgress& progress) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a].tokens.size() > rows[b].tokens.size(); });
  std::vector<std::vector<float>> losses(rows.size());
  std::vector<ScoredTokens> together;
  for (size_t first = 0; first < order.size(); first += together.size()) {
    together.clear();
    for (size_t i = first; i < std::min(order.size(), first + static_cast<size_t>(batch)); ++i) together.push_back(rows[order[i]]);
    std::vector<std::vector<float>> found = token_losses(evaluated, together);
    for (size_t i = 0; i < found.size(); ++i) losses[order[first + i]] = std::move(found[i]);
    if (progress) progress(static_cast<int64_t>(first + together.size()), static_cast<int64_t>(rows.size()));
  }
  return losses;
}

}  // namespace cairn::evaluate
