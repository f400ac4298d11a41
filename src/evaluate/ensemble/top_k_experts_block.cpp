#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/core/IListRef.h>

// Only the top_k experts read a token. The selection is made from log w every `refresh` tokens. An expert that was not selected has not
// read the tokens since; it catches up on them when it is selected again, at a refresh at the earliest.
#include "evaluate/ensemble/expert_blocks.h"
#include "kernels/aten.h"

namespace cairn::evaluate {
namespace {

using model::Call;
using model::Values;

constexpr const char *kTokens = "ensemble.tokens", *kHidden = "ensemble.hidden", *kEvidence = "ensemble.evidence";

// What is known of the sequences from position 0 on: tensors of the KV cache, or of this pass alone. In host memory, except hidden states.
struct SequenceState {
  at::Tensor tokens;    // [batch, positions] int64
  at::Tensor hidden;    // [batch, positions, all widths] fp32
  at::Tensor evidence;  // [batch, positions, experts] double: log w after reading that token; NaN where an expert has not read it
};

class TopKExpertsBlock final : public FrozenBlock {
 public:
  TopKExpertsBlock(const Experts& experts, int64_t vocab, const MixtureOptions& options)
      : experts_(experts), vocab_(vocab), options_(options) {
    card_ = {.name = "experts", .reads = {"tokens"}, .writes = {"mixture"}};
  }

  void forward(Values& values, model::Saved* /*keep*/, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens");
    const int64_t begin = call.slice.begin, count = tokens.size(1), end = begin + count;
    CAIRN_CHECK(!call.cache || tokens.size(0) == 1, "{} sequences on one cache", tokens.size(0));
    CAIRN_CHECK(call.cache || begin == 0, "position {} of a sequence whose beginning is not known", begin);
    SequenceState state = state_of(tokens, call);
    state.tokens.narrow(1, begin, count).copy_(tokens);
    state.evidence.narrow(1, begin, count).fill_(std::numeric_limits<double>::quiet_NaN());
    for (size_t j = 0; j < experts_.size(); ++j)
      if (reads(state, j, begin, end)) read(state, j, end, call);
    const at::Tensor weights = weights_of(state, begin, end);
    values.put("mixture", at::cat({state.hidden.narrow(1, begin, count), weights.to(state.hidden.device())}, -1));
  }

 private:
  SequenceState state_of(const at::Tensor& tokens, const Call& call) const {
    const int64_t batch = tokens.size(0), positions = call.cache ? call.cache->capacity : tokens.size(1);
    const auto kept = [&](const char* name, std::vector<int64_t> shape, const at::TensorOptions& like) {
      if (!call.cache) return at::zeros(shape, like);
      at::Tensor& tensor = call.cache->tensors[name];
      if (!tensor.defined()) tensor = at::zeros(shape, like);
      return tensor;
    };
    const at::TensorOptions there = call.weights.get({0}).options().dtype(at::kFloat);
    return {kept(kTokens, {batch, positions}, at::kLong), kept(kHidden, {batch, positions, experts_.back().end}, there),
            kept(kEvidence, {batch, positions, static_cast<int64_t>(experts_.size())}, at::kDouble)};
  }

  // Whether expert j must read now. For a single token, an expert outside the current selection need not.
  bool reads(const SequenceState& state, size_t j, int64_t begin, int64_t end) const {
    if (end - begin > 1 || begin % options_.refresh == 0) return true;
    const double* at = evidence_at(state, 0, begin - begin % options_.refresh);
    return std::isfinite(log_weights(options_, {at, experts_.size()}, {at, experts_.size()})[j]);
  }

  const double* evidence_at(const SequenceState& state, int64_t row, int64_t position) const {
    return state.evidence.const_data_ptr<double>() + (row * state.evidence.size(1) + position) * static_cast<int64_t>(experts_.size());
  }

  // Lets expert j read all tokens before `end` that it has not read.
  void read(const SequenceState& state, size_t j, int64_t end, const Call& call) const {
    const Expert& expert = experts_[j];
    int64_t from = end;
    while (from > 0 && std::isnan(evidence_at(state, 0, from - 1)[j])) --from;
    const at::Tensor hidden = state.hidden.narrow(2, expert.begin, expert.width());
    hidden.narrow(1, from, end - from).copy_(hidden_of(expert, state.tokens.narrow(1, from, end - from), call, from));
    const at::Tensor evidence = state.evidence.select(2, static_cast<int64_t>(j));  // [batch, positions]
    if (from == 0) evidence.select(1, 0).fill_(log_prior(options_)[j]);
    const int64_t first = std::max<int64_t>(from, 1), count = end - first;  // tokens with a prediction
    if (count <= 0) return;
    if (options_.average) return (void)evidence.narrow(1, first, count).fill_(log_prior(options_)[j]);
    const at::Tensor before = hidden.narrow(1, first - 1, count).reshape({-1, expert.width()});
    const at::Tensor targets = state.tokens.narrow(1, first, count).reshape({-1});
    const at::Tensor log_p = log_probabilities(expert, before, targets, vocab_, call).to(at::kCPU).view({-1, count});
    evidence.narrow(1, first, count).copy_(log_p.cumsum(1) + evidence.narrow(1, first - 1, 1));
  }

  // log q for the token after each position, [batch, length, experts].
  at::Tensor weights_of(const SequenceState& state, int64_t begin, int64_t end) const {
    const int64_t batch = state.tokens.size(0), count = end - begin;
    const at::Tensor weights = at::empty({batch, count, static_cast<int64_t>(experts_.size())}, at::kFloat);
    float* into = weights.mutable_data_ptr<float>();
    for (int64_t row = 0; row < batch; ++row)
      for (int64_t position = begin; position < end; ++position) {
        const double* refreshed = evidence_at(state, row, position - position % options_.refresh);
        const double* now = evidence_at(state, row, position);
        for (const double one : log_weights(options_, {refreshed, experts_.size()}, {now, experts_.size()}))
          *into++ = static_cast<float>(one);
      }
    return weights;
  }

  const Experts& experts_;
  const int64_t vocab_;
  const MixtureOptions& options_;
};

}  // namespace

std::unique_ptr<model::Block> make_top_k_experts_block(const Experts& experts, int64_t vocab, const MixtureOptions& options) {
  return std::make_unique<TopKExpertsBlock>(experts, vocab, options);
}

}  // namespace cairn::evaluate
