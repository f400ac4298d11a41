#include "model/generate.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/model.h"

namespace cairn::model {
namespace {

// Logits after the last of `ids`, which stand at positions begin, begin + 1, ...
at::Tensor next_logits(const Model& model, const Weights& weights, Buffers& buffers, Cache& cache, const std::vector<int32_t>& ids,
                       int64_t begin) {
  const mesh::Axes alone;
  const Call call{
      .weights = weights, .buffers = buffers, .axes = alone, .random = {}, .needs = {false, false}, .slice = {begin}, .cache = &cache};
  const at::Device device = weights.get({0}).device();
  Values values;
  values.put("tokens", at::tensor(ids, at::kInt).to(at::kLong).view({1, -1}).to(device));
  for (const auto& block : model.blocks()) block->forward(values, nullptr, call);
  const at::Tensor logits = values.take("logits");
  return logits.select(1, logits.size(1) - 1).view({-1}).to(at::kCPU, at::kFloat);
}

int64_t draw(const at::Tensor& log_probabilities, const GenerateOptions& options, uint64_t index) {
  if (options.temperature == 0) return log_probabilities.argmax().item<int64_t>();
  const int64_t vocab = log_probabilities.numel();
  const int64_t k = options.top_k > 0 ? std::min(options.top_k, vocab) : vocab;
  const auto [best, ids] = log_probabilities.topk(k);
  const at::Tensor chances = (best.to(at::kDouble) / options.temperature).softmax(0).contiguous();
  double left = options.random.uniform(index);
  const double* chance = chances.const_data_ptr<double>();
  int64_t at = 0;
  while (at < k - 1 && left >= chance[at]) left -= chance[at++];
  return ids[at].item<int64_t>();
}

}  // namespace

Generated generate(const Model& model, const Weights& weights, Buffers& buffers, const std::vector<int32_t>& prompt,
                   const GenerateOptions& options) {
  CAIRN_CHECK(!prompt.empty(), "an empty prompt");
  at::NoGradGuard no_grad;
  Generated result;
  const auto begin = static_cast<int64_t>(prompt.size());
  const int64_t room = std::min(options.tokens, options.length_max - begin);
  if (room <= 0) return result;
  Cache cache{.capacity = begin + room, .tensors = {}};
  at::Tensor logits = next_logits(model, weights, buffers, cache, prompt, 0);
  while (true) {
    const at::Tensor log_probabilities = logits.log_softmax(0);
    const auto drawn = static_cast<uint64_t>(result.ids.size());
    const auto id = static_cast<int32_t>(draw(log_probabilities, options, drawn));
    if (id == options.stop) break;
    result.ids.push_back(id);
    result.log_probabilities.push_back(log_probabilities[id].item<float>());
    if (static_cast<int64_t>(result.ids.size()) == room) break;
    logits = next_logits(model, weights, buffers, cache, {id}, begin + static_cast<int64_t>(drawn));
  }
  return result;
}

}  // namespace cairn::model
