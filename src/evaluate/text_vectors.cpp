#include "evaluate/text_vectors.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/call.h"

namespace cairn::evaluate {
namespace {

std::vector<std::span<const int32_t>> spans_of(const data::TokenTable& tokens, std::span<const int64_t> texts) {
  std::vector<std::span<const int32_t>> spans;
  for (const int64_t text : texts) spans.push_back(tokens[text]);
  return spans;
}

}  // namespace

at::Tensor TextEncoder::run(const mesh::Batch& batch) const {
  at::NoGradGuard no_grad;
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone, .random = {}, .needs = {false, false}};
  const at::Device device = weights.get({0}).device();
  model::Values values;
  for (const auto& [name, field] : batch.fields)
    if (name != "lengths") values.put(name, field.tensor.to(device));
  for (const auto& block : model.blocks()) block->forward(values, nullptr, call);
  return values.take("vectors");
}

at::Tensor text_vectors(const TextEncoder& encoder, const data::TokenTable& tokens, std::span<const int64_t> texts,
                        data::RetrievalPooling pooling, int64_t batch, const OnProgress& progress) {
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tokens[texts[a]].size() > tokens[texts[b]].size(); });
  at::Tensor all;
  std::vector<int64_t> together;
  for (size_t first = 0; first < order.size(); first += together.size()) {
    together.clear();
    for (size_t i = first; i < std::min(order.size(), first + static_cast<size_t>(batch)); ++i) together.push_back(texts[order[i]]);
    const at::Tensor found = encoder.run(data::encoder_batch(spans_of(tokens, together), &pooling, encoder.padding)).select(1, 0).cpu();
    if (!all.defined()) all = at::empty({static_cast<int64_t>(texts.size()), found.size(1)}, at::kFloat);
    for (size_t i = 0; i < together.size(); ++i) all[static_cast<int64_t>(order[first + i])].copy_(found[static_cast<int64_t>(i)]);
    if (progress) progress(static_cast<int64_t>(first + together.size()), static_cast<int64_t>(texts.size()));
  }
  return all.defined() ? all : at::empty({0, 0});
}

TokenVectors token_vectors(const TextEncoder& encoder, const data::TokenTable& tokens, std::span<const int64_t> texts) {
  const mesh::Batch batch = data::encoder_batch(spans_of(tokens, texts), nullptr, encoder.padding);
  const at::Tensor vectors = encoder.run(batch);
  return {vectors, batch.field("lengths").to(vectors.device())};
}

}  // namespace cairn::evaluate
