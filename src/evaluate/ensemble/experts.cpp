#include "evaluate/ensemble/experts.h"

#include <algorithm>

#include "kernels/aten.h"
#include "kernels/cross_entropy.h"

namespace cairn::evaluate {
namespace {

using model::Call;
using model::Values;

constexpr int64_t kExpertLogitBytesMax = 64 << 20;  // at a time

// The weights of one expert, as a view of all weights.
class ExpertWeights final : public model::Weights {
 public:
  ExpertWeights(const model::Weights& all, int32_t first) : all_(all), first_(first) {}
  at::Tensor get(mesh::ParamId id) const override { return all_.get({id.first + first_, id.count}); }

 private:
  const model::Weights& all_;
  int32_t first_;
};

// One expert's view of a call: weights, buffers and cache under the expert's own names. The destructor writes the cache back.
class ExpertCall {
 public:
  ExpertCall(const Expert& expert, const Call& call, int64_t begin) : expert_(expert), outer_(call), weights_(call.weights, expert.first) {
    for (auto& [name, tensor] : call.buffers)
      if (name.starts_with(expert.prefix)) buffers_[name.substr(expert.prefix.size())] = tensor;
    slice_.begin = begin;
    if (!call.cache) return;
    cache_.capacity = call.cache->capacity;
    for (auto& [name, tensor] : call.cache->tensors)
      if (name.starts_with(expert.prefix)) cache_.tensors[name.substr(expert.prefix.size())] = tensor;
    for (auto& [name, tensor] : call.cache->states)
      if (name.starts_with(expert.prefix)) cache_.states[name.substr(expert.prefix.size())] = tensor;
  }
  ~ExpertCall() {
    if (!outer_.cache) return;
    for (auto& [name, tensor] : cache_.tensors) outer_.cache->tensors[expert_.prefix + name] = tensor;
    for (auto& [name, tensor] : cache_.states) outer_.cache->states[expert_.prefix + name] = tensor;
  }
  ExpertCall(const ExpertCall&) = delete;
  ExpertCall& operator=(const ExpertCall&) = delete;

  Call call() {
    return {.weights = weights_,
            .buffers = buffers_,
            .axes = outer_.axes,
            .random = outer_.random,
            .needs = {false, false},
            .slice = slice_,
            .cache = outer_.cache ? &cache_ : nullptr};
  }

 private:
  const Expert& expert_;
  const Call& outer_;
  ExpertWeights weights_;
  model::Buffers buffers_;
  model::Slice slice_;
  model::KvCache cache_;
};

}  // namespace

at::Tensor hidden_of(const Expert& expert, const at::Tensor& tokens, const Call& outer, int64_t begin) {
  ExpertCall view(expert, outer, begin);
  const Call call = view.call();
  Values values;
  values.put("tokens", tokens.to(outer.weights.get({0}).device()));
  const auto& blocks = expert.model->blocks();
  for (size_t i = 0; i + 1 < blocks.size(); ++i) blocks[i]->forward(values, nullptr, call);
  return values.take(expert.head().card().reads.front());
}

at::Tensor logits_of(const Expert& expert, const at::Tensor& hidden, const Call& outer) {
  ExpertCall view(expert, outer, 0);
  Values values;
  values.put(expert.head().card().reads.front(), hidden.to(outer.weights.get({0}).scalar_type()).contiguous().unsqueeze(0));
  expert.head().forward(values, nullptr, view.call());
  return values.take("logits").squeeze(0);
}

at::Tensor log_probabilities(const Expert& expert, const at::Tensor& hidden, const at::Tensor& targets, int64_t vocab, const Call& outer) {
  const int64_t rows = hidden.size(0), most = std::max<int64_t>(1, kExpertLogitBytesMax / (4 * vocab));
  const at::Tensor losses = at::empty({rows}, hidden.options().dtype(at::kFloat)), lse = at::empty_like(losses);
  const at::Tensor wanted = targets.to(hidden.device());
  for (int64_t done = 0; done < rows; done += most) {
    const int64_t count = std::min(most, rows - done);
    kernels::cross_entropy(losses.narrow(0, done, count), lse.narrow(0, done, count),
                           logits_of(expert, hidden.narrow(0, done, count), outer).to(at::kFloat), wanted.narrow(0, done, count));
  }
  return losses.to(at::kDouble).neg_();
}

}  // namespace cairn::evaluate
