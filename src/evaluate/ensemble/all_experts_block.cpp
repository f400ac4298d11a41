#include <ATen/core/IListRef.h>

// All experts read every token. For expert j at position t, with prior pi:
//
//   log w_j(t) = log pi_j + sum_{u <= t} log p_j(x_u | x_<u)        cumulative over the pass, carried over calls in the KV cache
//   log q_j(t) = log softmax_j(log w(t))                            the weight of expert j for token t + 1
#include "evaluate/ensemble/expert_blocks.h"
#include "kernels/aten.h"

namespace cairn::evaluate {
namespace {

using model::Call;
using model::Values;

constexpr const char* kLogWeights = "ensemble.log_weights";  // log w of each expert, [rows, experts] double

class AllExpertsBlock final : public FrozenBlock {
 public:
  AllExpertsBlock(const Experts& experts, int64_t vocab, const MixtureOptions& options)
      : experts_(experts), vocab_(vocab), average_(options.average), log_prior_(log_prior(options)) {
    card_ = {.name = "experts", .reads = {"tokens"}, .writes = {"mixture"}};
  }

  void forward(Values& values, model::Saved* /*keep*/, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens").to(call.weights.get({0}).device());
    const int64_t begin = call.slice.begin;
    CAIRN_CHECK(call.cache || begin == 0, "position {} of a sequence whose beginning is not known", begin);
    std::vector<at::Tensor> parts, evidence;
    for (size_t j = 0; j < experts_.size(); ++j) {
      parts.push_back(hidden_of(experts_[j], tokens, call, begin).to(at::kFloat));
      evidence.push_back(token_log_probs(j, tokens, parts.back(), call).cumsum_(1).add_(before(j, call)));
    }
    const at::Tensor all = at::stack(evidence, -1);
    if (call.cache) keep(all.select(1, tokens.size(1) - 1), *call.cache);
    parts.push_back(at::log_softmax(all, -1).to(at::kFloat));
    values.put("mixture", at::cat(parts, -1));
  }

 private:
  // log p_j of each of these tokens, [batch, length] double. That of the first comes from the cached log probabilities of the last call.
  at::Tensor token_log_probs(size_t j, const at::Tensor& tokens, const at::Tensor& hidden, const Call& call) const {
    const at::Tensor log_p = at::zeros(tokens.sizes(), hidden.options().dtype(at::kDouble));
    const int64_t others = tokens.size(1) - 1;
    if (average_) return log_p;
    if (call.slice.begin > 0)
      log_p.narrow(1, 0, 1).copy_(
          call.cache->states.at(kLastLogProbs).select(1, static_cast<int64_t>(j)).gather(1, tokens.narrow(1, 0, 1)));
    if (others > 0)
      log_p.narrow(1, 1, others)
          .copy_(log_probabilities(experts_[j], hidden.narrow(1, 0, others).reshape({-1, experts_[j].width()}),
                                   tokens.narrow(1, 1, others).reshape({-1}), vocab_, call)
                     .view({-1, others}));
    return log_p;
  }

  // log w of expert j before these tokens; broadcasts to [batch, length].
  at::Tensor before(size_t j, const Call& call) const {
    if (call.slice.begin == 0) return at::scalar_tensor(log_prior_[j], at::kDouble);
    return call.cache->states.at(kLogWeights).narrow(1, static_cast<int64_t>(j), 1);
  }

  static void keep(const at::Tensor& now, model::KvCache& cache) {
    at::Tensor& kept = cache.states[kLogWeights];
    kept.defined() ? (void)kept.copy_(now) : (void)(kept = now.contiguous());
  }

  const Experts& experts_;
  const int64_t vocab_;
  const bool average_;
  const std::vector<double> log_prior_;
};

}  // namespace

std::unique_ptr<model::Block> make_all_experts_block(const Experts& experts, int64_t vocab, const MixtureOptions& options) {
  return std::make_unique<AllExpertsBlock>(experts, vocab, options);
}

}  // namespace cairn::evaluate
