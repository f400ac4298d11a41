#include "evaluate/ensemble_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "model/decoder.h"

namespace cairn::evaluate {
namespace {

using model::Call;
using model::Values;

constexpr int64_t kLogitBytesMax = 64 << 20;  // at a time
constexpr const char *kTokens = "ensemble.tokens", *kHidden = "ensemble.hidden", *kEvidence = "ensemble.evidence";

// The weights of one expert among those of all.
class PartOfWeights final : public model::Weights {
 public:
  PartOfWeights(const model::Weights& all, int32_t first) : all_(all), first_(first) {}
  at::Tensor get(mesh::ParamId id) const override { return all_.get({id.first + first_, id.count}); }

 private:
  const model::Weights& all_;
  int32_t first_;
};

struct Expert {
  std::unique_ptr<model::Model> model;
  std::string prefix;          // of its names: "expert.0."
  int32_t first = 0;           // its first parameter among those of all
  int64_t begin = 0, end = 0;  // of its hidden states among those of all

  int64_t width() const { return end - begin; }
  const model::Block& head() const { return *model->blocks().back(); }
};
using Experts = std::vector<Expert>;

bool all_count(const MixOptions& options, const Experts& experts) {
  return options.top_k == 0 || options.top_k == static_cast<int64_t>(experts.size());
}

// One expert's view of a call: its weights, buffers and cache under its own names, put back when the view ends.
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
  }
  ~ExpertCall() {
    if (outer_.cache)
      for (auto& [name, tensor] : cache_.tensors) outer_.cache->tensors[expert_.prefix + name] = tensor;
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
  PartOfWeights weights_;
  model::Buffers buffers_;
  model::Slice slice_;
  model::Cache cache_;
};

// Everything but the head: hidden states [batch, length, width].
at::Tensor hidden_of(const Expert& expert, const at::Tensor& tokens, const Call& outer, int64_t begin) {
  ExpertCall view(expert, outer, begin);
  const Call call = view.call();
  Values values;
  values.put("tokens", tokens.to(outer.weights.get({0}).device()));
  const auto& blocks = expert.model->blocks();
  for (size_t i = 0; i + 1 < blocks.size(); ++i) blocks[i]->forward(values, nullptr, call);
  return values.take(expert.head().card().reads.front());
}

// [rows, vocab] after hidden states [rows, width].
at::Tensor logits_of(const Expert& expert, const at::Tensor& hidden, const Call& outer) {
  ExpertCall view(expert, outer, 0);
  Values values;
  values.put(expert.head().card().reads.front(), hidden.to(outer.weights.get({0}).scalar_type()).contiguous().unsqueeze(0));
  expert.head().forward(values, nullptr, view.call());
  return values.take("logits").squeeze(0);
}

// log p of targets [rows] after hidden states [rows, width], a bounded number of logits at a time. In double on the host, to be summed up.
at::Tensor log_probabilities(const Expert& expert, const at::Tensor& hidden, const at::Tensor& targets, int64_t vocab, const Call& outer) {
  const int64_t rows = hidden.size(0), most = std::max<int64_t>(1, kLogitBytesMax / (4 * vocab));
  const at::Tensor losses = at::empty({rows}, hidden.options().dtype(at::kFloat)), lse = at::empty_like(losses);
  const at::Tensor wanted = targets.to(hidden.device());
  for (int64_t done = 0; done < rows; done += most) {
    const int64_t count = std::min(most, rows - done);
    kernels::cross_entropy(losses.narrow(0, done, count), lse.narrow(0, done, count),
                           logits_of(expert, hidden.narrow(0, done, count), outer).to(at::kFloat), wanted.narrow(0, done, count));
  }
  return losses.to(at::kCPU, at::kDouble).neg_();
}

[[noreturn]] void refuse_training() { base::fail_input("an ensemble is not trained: train its experts, each for itself"); }

// What both blocks are not asked for.
class FrozenBlock : public model::Block {
 public:
  const model::Card& card() const override { return card_; }
  void backward_input(Values&, model::Saved&, const Call&) const override { refuse_training(); }
  void backward_weight(model::Saved&&, mesh::Gradients&, const Call&) const override { refuse_training(); }
  void plain(Values& values, const Call& call) const override { forward(values, nullptr, call); }

 protected:
  model::Card card_;
};

// What is known of a stretch of sequences, from position 0 on: of a cache that is gone on with, or of this pass alone. On the host, but for
// hidden states.
struct Memory {
  at::Tensor tokens;    // [batch, positions] int64
  at::Tensor hidden;    // [batch, positions, all widths] fp32
  at::Tensor evidence;  // [batch, positions, experts] double: log w after the token there was read; not a number where an expert has not
};

// Tokens to the hidden states of all experts and, behind them, log q for the token after each: [batch, length, all widths + experts].
class ReadingBlock final : public FrozenBlock {
 public:
  ReadingBlock(const Experts& experts, int64_t vocab, const MixOptions& options) : experts_(experts), vocab_(vocab), options_(options) {
    card_ = {.name = "experts", .reads = {"tokens"}, .writes = {"mixture"}};
  }

  void forward(Values& values, model::Saved* /*keep*/, const Call& call) const override {
    const at::Tensor tokens = values.get("tokens");
    const int64_t begin = call.slice.begin, count = tokens.size(1), end = begin + count;
    CAIRN_CHECK(!call.cache || tokens.size(0) == 1 || all_count(options_, experts_), "{} sequences on one cache", tokens.size(0));
    CAIRN_CHECK(call.cache || begin == 0, "position {} of a sequence whose beginning is not known", begin);
    Memory memory = memory_of(tokens, call);
    memory.tokens.narrow(1, begin, count).copy_(tokens);
    memory.evidence.narrow(1, begin, count).fill_(std::numeric_limits<double>::quiet_NaN());
    for (size_t j = 0; j < experts_.size(); ++j)
      if (reads(memory, j, begin, end)) read(memory, j, end, call);
    const at::Tensor weights = weights_of(memory, begin, end);
    values.put("mixture", at::cat({memory.hidden.narrow(1, begin, count), weights.to(memory.hidden.device())}, -1));
  }

 private:
  Memory memory_of(const at::Tensor& tokens, const Call& call) const {
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

  // Whether expert j is asked: one that does not count until the next refresh need not be, where a single token comes.
  bool reads(const Memory& memory, size_t j, int64_t begin, int64_t end) const {
    if (all_count(options_, experts_) || end - begin > 1 || begin % options_.refresh == 0) return true;
    const double* at = evidence_at(memory, 0, begin - begin % options_.refresh);
    return std::isfinite(log_weights(options_, {at, experts_.size()}, {at, experts_.size()})[j]);
  }

  const double* evidence_at(const Memory& memory, int64_t row, int64_t position) const {
    return memory.evidence.const_data_ptr<double>() + (row * memory.evidence.size(1) + position) * static_cast<int64_t>(experts_.size());
  }

  // All that expert j has not read yet, up to `end`.
  void read(const Memory& memory, size_t j, int64_t end, const Call& call) const {
    const Expert& expert = experts_[j];
    int64_t from = end;
    while (from > 0 && std::isnan(evidence_at(memory, 0, from - 1)[j])) --from;
    const at::Tensor hidden = memory.hidden.narrow(2, expert.begin, expert.width());
    hidden.narrow(1, from, end - from).copy_(hidden_of(expert, memory.tokens.narrow(1, from, end - from), call, from));
    const at::Tensor evidence = memory.evidence.select(2, static_cast<int64_t>(j));  // [batch, positions]
    if (from == 0) evidence.select(1, 0).fill_(log_prior(options_)[j]);
    const int64_t first = std::max<int64_t>(from, 1), count = end - first;  // tokens that somebody foresaw
    if (count <= 0) return;
    if (options_.average) return (void)evidence.narrow(1, first, count).fill_(log_prior(options_)[j]);
    const at::Tensor before = hidden.narrow(1, first - 1, count).reshape({-1, expert.width()});
    const at::Tensor targets = memory.tokens.narrow(1, first, count).reshape({-1});
    const at::Tensor log_p = log_probabilities(expert, before, targets, vocab_, call).view({-1, count});
    evidence.narrow(1, first, count).copy_(log_p.cumsum(1) + evidence.narrow(1, first - 1, 1));
  }

  // log q for the token after each position, [batch, length, experts].
  at::Tensor weights_of(const Memory& memory, int64_t begin, int64_t end) const {
    const int64_t batch = memory.tokens.size(0), count = end - begin;
    const at::Tensor weights = at::empty({batch, count, static_cast<int64_t>(experts_.size())}, at::kFloat);
    float* into = weights.mutable_data_ptr<float>();
    for (int64_t row = 0; row < batch; ++row)
      for (int64_t position = begin; position < end; ++position) {
        const double* refreshed = evidence_at(memory, row, position - position % options_.refresh);
        const double* now = evidence_at(memory, row, position);
        for (const double one : log_weights(options_, {refreshed, experts_.size()}, {now, experts_.size()}))
          *into++ = static_cast<float>(one);
      }
    return weights;
  }

  const Experts& experts_;
  const int64_t vocab_;
  const MixOptions& options_;
};

// Hidden states and weights to logs of probabilities.
class MixingBlock final : public FrozenBlock {
 public:
  explicit MixingBlock(const Experts& experts) : experts_(experts) {
    card_ = {.name = "mixture", .reads = {"mixture"}, .writes = {"logits"}};
  }

  void forward(Values& values, model::Saved* /*keep*/, const Call& call) const override {
    const at::Tensor mixture = values.take("mixture");
    const at::Tensor rows = mixture.reshape({-1, mixture.size(-1)});
    at::Tensor mixed;
    for (size_t j = 0; j < experts_.size(); ++j) {
      const at::Tensor weight = rows.select(1, experts_.back().end + static_cast<int64_t>(j));
      const at::Tensor counts = weight.isfinite().nonzero().flatten();
      if (counts.size(0) == 0) continue;
      const at::Tensor hidden = rows.narrow(1, experts_[j].begin, experts_[j].width());
      const bool all = counts.size(0) == rows.size(0);
      const at::Tensor logits = logits_of(experts_[j], all ? hidden : hidden.index_select(0, counts), call).to(at::kFloat);
      const at::Tensor own = at::log_softmax(logits, -1).add_((all ? weight : weight.index_select(0, counts)).unsqueeze(1));
      if (!mixed.defined()) mixed = at::full({rows.size(0), own.size(1)}, -std::numeric_limits<float>::infinity(), own.options());
      all ? (void)(mixed = at::logaddexp(mixed, own))
          : (void)mixed.index_copy_(0, counts, at::logaddexp(mixed.index_select(0, counts), own));
    }
    values.put("logits", mixed.view({mixture.size(0), mixture.size(1), -1}));
  }

 private:
  const Experts& experts_;
};

class Ensemble final : public model::Model {
 public:
  Ensemble(const std::vector<model::DecoderShape>& shapes, MixOptions options) : options_(std::move(options)) {
    CAIRN_CHECK(!shapes.empty(), "an ensemble of nobody");
    check(options_, static_cast<int64_t>(shapes.size()));
    for (const model::DecoderShape& shape : shapes) {
      if (shape.vocab != shapes.front().vocab)
        base::fail_input("experts with vocabularies of {} and {}: those of an ensemble are the same", shapes.front().vocab, shape.vocab);
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
    Model::add(std::make_unique<ReadingBlock>(experts_, shapes.front().vocab, options_));
    Model::add(std::make_unique<MixingBlock>(experts_));
  }

  model::Buffers make_buffers(const at::TensorOptions& options) const override {
    model::Buffers all;
    for (const Expert& expert : experts_)
      for (auto& [name, tensor] : expert.model->make_buffers(options)) all[expert.prefix + name] = tensor;
    return all;
  }

  // Where only some experts count, each sequence has its own.
  bool takes_rows_together() const override { return all_count(options_, experts_); }

 private:
  Experts experts_;
  const MixOptions options_;
};

}  // namespace

std::unique_ptr<model::Model> make_ensemble(const std::vector<model::DecoderShape>& experts, MixOptions options) {
  return std::make_unique<Ensemble>(experts, std::move(options));
}

}  // namespace cairn::evaluate
