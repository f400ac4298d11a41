#include "evaluate/ensemble/ensemble_model.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "evaluate/ensemble/expert_blocks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/decoder/served_adapters.h"

namespace cairn::evaluate {
namespace {

using model::Call;
using model::Values;

// From hidden states and log q to log probabilities: the mixture.
class MixingBlock final : public FrozenBlock {
 public:
  MixingBlock(const Experts& experts, bool uses_all_experts, bool of_logs)
      : experts_(experts), uses_all_experts_(uses_all_experts), of_logs_(of_logs) {
    card_ = {.name = "mixture", .reads = {"mixture"}, .writes = {"logits"}};
  }

  void forward(Values& values, model::Saved* /*keep*/, const Call& call) const override {
    const at::Tensor mixture = values.take("mixture");
    const at::Tensor rows = mixture.reshape({-1, mixture.size(-1)});
    at::Tensor mixed;
    for (size_t j = 0; j < experts_.size(); ++j) {
      const at::Tensor weight = rows.select(1, experts_.back().end + static_cast<int64_t>(j));
      const at::Tensor hidden = rows.narrow(1, experts_[j].begin, experts_[j].width());
      if (uses_all_experts_)
        add_all(mixed, log_probs(j, hidden, call), weight, j, mixture.size(0), call);
      else
        add_some(mixed, j, hidden, weight, call);
    }
    if (of_logs_) mixed = at::log_softmax(mixed, -1);
    values.put("logits", mixed.view({mixture.size(0), mixture.size(1), -1}));
  }

 private:
  // log p of every token, [rows, vocab].
  at::Tensor log_probs(size_t j, const at::Tensor& hidden, const Call& call) const {
    return at::log_softmax(logits_of(experts_[j], hidden, call).to(at::kFloat), -1);
  }

  void add_all(at::Tensor& mixed, const at::Tensor& own, const at::Tensor& weight, size_t j, int64_t batch, const Call& call) const {
    if (call.cache) {
      const auto experts = static_cast<int64_t>(experts_.size());
      at::Tensor& kept = call.cache->states[kLastLogProbs];
      if (!kept.defined()) kept = at::empty({batch, experts, own.size(1)}, own.options());
      kept.select(1, static_cast<int64_t>(j)).copy_(own.view({batch, -1, own.size(1)}).select(1, own.size(0) / batch - 1));
    }
    if (of_logs_) {
      own.mul_(weight.exp().unsqueeze(1));
      mixed = mixed.defined() ? mixed.add_(own) : own;
      return;
    }
    own.add_(weight.unsqueeze(1));
    mixed = mixed.defined() ? at::logaddexp(mixed, own) : own;
  }

  // Computes logits only for rows in which the expert has weight.
  void add_some(at::Tensor& mixed, size_t j, const at::Tensor& hidden, const at::Tensor& weight, const Call& call) const {
    const at::Tensor counts = weight.isfinite().nonzero().flatten();
    if (counts.size(0) == 0) return;
    const at::Tensor own = log_probs(j, hidden.index_select(0, counts), call).add_(weight.index_select(0, counts).unsqueeze(1));
    if (!mixed.defined()) mixed = at::full({hidden.size(0), own.size(1)}, -std::numeric_limits<float>::infinity(), own.options());
    mixed.index_copy_(0, counts, at::logaddexp(mixed.index_select(0, counts), own));
  }

  const Experts& experts_;
  const bool uses_all_experts_;
  const bool of_logs_;
};

class Ensemble final : public model::Model {
 public:
  Ensemble(const std::vector<model::DecoderShape>& shapes, MixtureOptions options) : options_(std::move(options)) {
    CAIRN_CHECK(!shapes.empty(), "an ensemble without experts");
    check(options_, static_cast<int64_t>(shapes.size()));
    for (const model::DecoderShape& shape : shapes) {
      if (shape.vocab != shapes.front().vocab)
        base::fail_input("experts with vocabularies of {} and {}: an ensemble needs one vocabulary", shapes.front().vocab, shape.vocab);
      const int64_t begin = experts_.empty() ? 0 : experts_.back().end;
      experts_.push_back({.model = model::make_decoder(shape),
                          .prefix = fmt::format("expert.{}.", experts_.size()),
                          .first = static_cast<int32_t>(parameters().size()),
                          .begin = begin,
                          .end = begin + shape.embed});
      for (model::Parameter parameter : experts_.back().model->parameters()) {
        parameter.name = experts_.back().prefix + parameter.name;
        Model::add(std::move(parameter));
      }
    }
    add_blocks(shapes.front().vocab);
  }

  // Experts that share the parameters of one decoder.
  Ensemble(const model::DecoderShape& shape, const std::shared_ptr<const model::ServedAdapters>& adapters, MixtureOptions options)
      : options_(std::move(options)), adapters_(adapters) {
    check(options_, adapters->count());
    for (int32_t j = 0; j < adapters->count(); ++j) {
      const int64_t begin = j * shape.embed;
      experts_.push_back({.model = model::make_serving_decoder(shape, adapters),
                          .prefix = fmt::format("expert.{}.", j),
                          .first = 0,
                          .begin = begin,
                          .end = begin + shape.embed});
    }
    for (const model::Parameter& parameter : experts_.front().model->parameters()) Model::add(parameter);
    add_blocks(shape.vocab);
  }

  model::Buffers make_buffers(const at::TensorOptions& options) const override {
    model::Buffers all;
    for (size_t j = 0; j < experts_.size(); ++j) {
      model::Buffers own = experts_[j].model->make_buffers(options);
      const auto adapter = static_cast<int32_t>(j);
      if (adapters_) model::put_row_adapters(own, {&adapter, 1}, options.device());  // one group of rows: as many as there are
      for (auto& [name, tensor] : own) all[experts_[j].prefix + name] = tensor;
    }
    return all;
  }

  // With top_k each sequence selects its own experts.
  bool supports_batched_decoding() const override { return uses_all_experts(); }

 private:
  void add_blocks(int64_t vocab) {
    Model::add((uses_all_experts() ? make_all_experts_block : make_top_k_experts_block)(experts_, vocab, options_));
    Model::add(std::make_unique<MixingBlock>(experts_, uses_all_experts(), options_.average && options_.of_logs));
  }
  bool uses_all_experts() const { return options_.top_k == 0 || options_.top_k == static_cast<int64_t>(experts_.size()); }

  Experts experts_;
  const MixtureOptions options_;
  const std::shared_ptr<const model::ServedAdapters> adapters_;  // null: each expert has parameters of its own
};

}  // namespace

std::unique_ptr<model::Model> make_ensemble(const std::vector<model::DecoderShape>& experts, MixtureOptions options) {
  return std::make_unique<Ensemble>(experts, std::move(options));
}

std::unique_ptr<model::Model> make_adapter_ensemble(const model::DecoderShape& shape, std::shared_ptr<const model::ServedAdapters> adapters,
                                                    MixtureOptions options) {
  return std::make_unique<Ensemble>(shape, adapters, std::move(options));
}

}  // namespace cairn::evaluate
