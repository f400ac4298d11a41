#include "model/generate/decode_step.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/barrier.h"
#include "kernels/cpu/tensor.h"
#include "kernels/decode_row.h"
#include "model/decoder/wiring.h"
#include "model/families/config.h"
#include "model/families/families.h"
#include "model/model.h"

namespace cairn::model {
namespace {

constexpr int64_t kScoresPadding = 32;  // attend_row writes a vector beyond the keys; the rest keeps threads off each other's cache lines

// Multiplications per thread below which barriers cost more than threads save: about twenty microseconds.
constexpr int64_t kWorkPerThread = 300'000;

// Finds parameters by their family's names.
class WeightFinder {
 public:
  WeightFinder(const Model& model, const Weights& weights, std::vector<at::Tensor>& held) : weights_(weights), held_(held) {
    for (const Parameter& parameter : model.parameters()) names_.emplace(parameter.name, static_cast<int32_t>(names_.size()));
  }

  const float* pointer(const std::string& name, int32_t count = 1) {
    const auto found = names_.find(name);
    if (found == names_.end()) return nullptr;
    const at::Tensor tensor = weights_.get({found->second, count});
    plain_ = plain_ && kernels::all_cpu_float(tensor);
    if (!plain_) return nullptr;
    held_.push_back(tensor);
    return tensor.const_data_ptr<float>();
  }

  // Projections of one input, stored as one matrix.
  kernels::WeightView linear(const std::string& at, const std::vector<std::string>& names, int64_t out, int64_t in, bool fan_in_fan_out) {
    const auto count = static_cast<int32_t>(names.size());
    return {pointer(at + names[0] + ".weight", count), pointer(at + names[0] + ".bias", count), out, in, fan_in_fan_out};
  }

  bool plain() const { return plain_; }  // all found so far is fp32 on the CPU

 private:
  const Weights& weights_;
  std::vector<at::Tensor>& held_;
  std::map<std::string, int32_t> names_;
  bool plain_ = true;
};

const float* table_of(const Buffers& buffers, const char* name) {
  const auto found = buffers.find(name);
  return found != buffers.end() && kernels::all_cpu_float(found->second) ? found->second.const_data_ptr<float>() : nullptr;
}

bool has_adapters_or_forms(const Model& model) {
  const auto adapted = [](const std::unique_ptr<Block>& block) {
    return std::ranges::any_of(block->card().operations,
                               [](const BlockOp& operation) { return !operation.adapted.empty() || !operation.forms.empty(); });
  };
  return std::ranges::any_of(model.blocks(), adapted) ||
         std::ranges::any_of(model.parameters(), [](const Parameter& p) { return p.role == Parameter::Role::adapter; });
}

}  // namespace

std::unique_ptr<DecodeStep> DecodeStep::make(const Model& model, const Weights& weights, const Buffers& buffers) {
  const std::string config = model.config_json();
  if (config.empty() || has_adapters_or_forms(model)) return nullptr;
  std::unique_ptr<DecodeStep> step(new DecodeStep);
  step->shape_ = parse_config(config, "config.json");
  const DecoderShape& s = step->shape_;
  if (!is_standard(s.residual) || s.pattern) return nullptr;
  const Family& kind = family(s.family);
  if (kind.linear_attention || s.experts.count > 0 || kind.qk_norm_together) return nullptr;  // the blocks decode
  step->rotary_ = kind.rotary(), step->gated_ = kind.gated();
  WeightFinder find(model, weights, step->held_);
  const auto norm = [&](const std::string& name) { return Gain{find.pointer(name + ".weight"), find.pointer(name + ".bias")}; };
  step->table_ = find.pointer(kind.names.embedding + ".weight");
  if (!step->rotary_) step->positions_ = find.pointer(kind.names.positions + ".weight");
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string at = fmt::format("{}.{}.", kind.names.layers, i);
    const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    Layer layer{.attention_norm = norm(at + kind.names.attention_norm), .mlp_norm = norm(at + kind.names.mlp_norm)};
    if (kind.qk_norm) layer.q_norm = norm(at + "self_attn.q_norm"), layer.k_norm = norm(at + "self_attn.k_norm");
    layer.qkv = find.linear(at, kind.names.qkv, q + 2 * kv, s.embed, kind.fan_in_fan_out);
    layer.out = find.linear(at, {kind.names.out}, s.embed, q, kind.fan_in_fan_out);
    layer.up = find.linear(at, kind.names.up, step->gated_ ? 2 * s.mlp : s.mlp, s.embed, kind.fan_in_fan_out);
    layer.down = find.linear(at, {kind.names.down}, s.embed, s.mlp, kind.fan_in_fan_out);
    layer.cache_name = fmt::format("layers.{}.attention", i);
    step->layers_.push_back(layer);
  }
  step->elements_ = model.elements();
  step->final_norm_ = norm(kind.names.final_norm);
  step->head_ = {s.tied ? step->table_ : find.pointer(kind.names.head + ".weight"), nullptr, s.vocab, s.embed, false};
  step->cos_ = table_of(buffers, "rope.cos"), step->sin_ = table_of(buffers, "rope.sin");
  if (!find.plain() || (step->rotary_ && (step->cos_ == nullptr || step->sin_ == nullptr))) return nullptr;
  return step;
}

// One thread's part of a step. Stages that exchange data are separated by barriers. Every thread computes the norms itself, which is
// cheaper than another barrier.
struct DecodeStep::ThreadWork {
  DecodeStep& step;
  std::span<const Row> rows;
  int64_t stride;  // between the cache's rows
  float* logits;
  kernels::Barrier& barrier;
  int thread, threads;

  const DecoderShape& shape() const { return step.shape_; }
  int64_t count() const { return static_cast<int64_t>(rows.size()); }

  // This thread's range of n outputs, in whole cache lines.
  std::pair<int64_t, int64_t> share(int64_t n) const {
    const int64_t lines = (n + 15) / 16;
    return {std::min(n, lines * thread / threads * 16), std::min(n, lines * (thread + 1) / threads * 16)};
  }

  void norm(float* y, const float* x, const Gain& gain, int64_t n) const {
    gain.bias != nullptr ? kernels::layer_norm_row(y, x, gain.weight, gain.bias, n, shape().norm_eps)
                         : kernels::rms_norm_row(y, x, gain.weight, n, shape().norm_eps);
  }

  float* normed(const Gain& gain) const {
    const int64_t embed = shape().embed;
    float* y = step.normed_.data() + thread * count() * embed;
    for (int64_t i = 0; i < count(); ++i) norm(y + i * embed, step.hidden_.data() + i * embed, gain, embed);
    return y;
  }

  void product(float* y, const float* x, const kernels::WeightView& w, bool add = false) const {
    const auto [begin, end] = share(w.out);
    kernels::matvec(y, w.out, x, w.in, count(), w, begin, end, add);
  }

  void embed() const {
    const int64_t width = shape().embed;
    const auto [begin, end] = share(width);
    for (int64_t i = 0; i < count(); ++i) {
      const Row& row = rows[static_cast<size_t>(i)];
      const float *from = step.table_ + row.token * width, *place = step.positions_ ? step.positions_ + row.position * width : nullptr;
      for (int64_t d = begin; d < end; ++d) step.hidden_[static_cast<size_t>(i * width + d)] = from[d] + (place ? place[d] : 0.0f);
    }
  }

  // Norms and rotates one head for its position.
  void place(float* head, const Gain& gain, int64_t position) const {
    const int64_t dim = shape().head_dim;
    if (gain.weight != nullptr) norm(head, head, gain, dim);
    if (step.rotary_) kernels::rotate_row(head, step.cos_ + position * (dim / 2), step.sin_ + position * (dim / 2), dim / 2);
  }

  // Attention of one query head. The new key is rotated by each query head that reads it; the first of these writes it into the cache,
  // where it is not read before the next step.
  void attend(const Layer& layer, int64_t index, int64_t i, int64_t head) const {
    const DecoderShape& s = shape();
    const Row& row = rows[static_cast<size_t>(i)];
    const int64_t dim = s.head_dim, group = s.heads / s.kv_heads, kv_head = head / group, width = s.kv_heads * dim;
    float* qkv = step.qkv_.data() + i * (s.heads + 2 * s.kv_heads) * dim;
    float* scores = step.scores_.data() + thread * static_cast<int64_t>(step.scores_.size()) / threads;
    float *k = scores, *q = qkv + head * dim, *own_v = qkv + (s.heads + s.kv_heads + kv_head) * dim;
    std::copy_n(qkv + (s.heads + kv_head) * dim, dim, k);
    place(q, layer.q_norm, row.position);
    place(k, layer.k_norm, row.position);
    const int64_t seen = s.window > 0 ? std::min(row.position, s.window - 1) : row.position;
    float* keys = step.keys_[static_cast<size_t>(index)] + row.cache_row * stride + kv_head * dim;
    float* values = step.values_[static_cast<size_t>(index)] + row.cache_row * stride + kv_head * dim;
    const int64_t first = (row.position - seen) * width;
    kernels::attend_row(step.mixed_.data() + (i * s.heads + head) * dim, q,
                        {.k = keys + first,
                         .v = values + first,
                         .stride = width,
                         .count = seen,
                         .own_k = k,
                         .own_v = own_v,
                         .head_dim = dim,
                         .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)))},
                        scores + dim);
    if (head % group != 0) return;
    std::copy_n(k, dim, keys + row.position * width);
    std::copy_n(own_v, dim, values + row.position * width);
  }

  void activate(int64_t begin, int64_t end) const {
    const int64_t width = step.gated_ ? 2 * shape().mlp : shape().mlp;
    for (int64_t i = 0; i < count(); ++i) {
      float* up = step.up_.data() + i * width;
      step.gated_ ? kernels::swiglu_row(up + begin, up + shape().mlp + begin, end - begin) : kernels::gelu_row(up + begin, end - begin);
    }
  }

  // A thread computes the same columns of gate and up, so that it can combine them at once.
  void project_up(const Layer& layer) const {
    const float* x = normed(layer.mlp_norm);
    const auto [begin, end] = share(shape().mlp);
    const auto make = [&, from = begin, to = end](int64_t offset) {
      kernels::matvec(step.up_.data(), layer.up.out, x, layer.up.in, count(), layer.up, offset + from, offset + to);
    };
    make(0);
    if (step.gated_) make(shape().mlp);
    activate(begin, end);
  }

  void run() const {
    embed();
    barrier.wait(threads);
    for (size_t index = 0; index < step.layers_.size(); ++index) {
      const Layer& layer = step.layers_[index];
      product(step.qkv_.data(), normed(layer.attention_norm), layer.qkv);
      barrier.wait(threads);
      const int64_t heads = shape().heads, tasks = count() * heads;
      for (int64_t task = tasks * thread / threads; task < tasks * (thread + 1) / threads; ++task)
        attend(layer, static_cast<int64_t>(index), task / heads, task % heads);
      barrier.wait(threads);
      product(step.hidden_.data(), step.mixed_.data(), layer.out, /*add=*/true);
      barrier.wait(threads);
      project_up(layer);
      barrier.wait(threads);
      const auto [begin, end] = share(layer.down.out);
      kernels::matvec(step.hidden_.data(), layer.down.out, step.up_.data(), layer.up.out, count(), layer.down, begin, end, /*add=*/true);
      barrier.wait(threads);
    }
    product(logits, normed(step.final_norm_), step.head_);
  }
};

void DecodeStep::reserve(int64_t rows, int64_t positions, int threads) {
  const auto grow = [](std::vector<float>& scratch, int64_t elements) {
    if (static_cast<int64_t>(scratch.size()) < elements) scratch.resize(static_cast<size_t>(elements));
  };
  grow(hidden_, rows * shape_.embed);
  grow(qkv_, rows * (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim);
  grow(mixed_, rows * shape_.heads * shape_.head_dim);
  grow(up_, rows * (gated_ ? 2 : 1) * shape_.mlp);
  grow(normed_, threads * rows * shape_.embed);
  const int64_t scores = shape_.head_dim + (positions + kScoresPadding) / 16 * 16 + 16;
  if (static_cast<int64_t>(scores_.size()) < scores * threads) scores_.resize(static_cast<size_t>(2 * scores * threads));
}

void DecodeStep::run(std::span<const Row> rows, KvCache& cache, float* logits) {
  if (rows.empty()) return;
  int64_t last = 0;
  for (const Row& row : rows) last = std::max(last, row.position);
  CAIRN_CHECK(last < cache.capacity && last < shape_.length, "position {} in a cache of {} and a model of {}", last, cache.capacity,
              shape_.length);
  const int64_t work = elements_ * static_cast<int64_t>(rows.size());
  const int threads = at::in_parallel_region() ? 1 : static_cast<int>(std::clamp<int64_t>(work / kWorkPerThread, 1, at::get_num_threads()));
  reserve(static_cast<int64_t>(rows.size()), last + 1, threads);
  keys_.clear(), values_.clear();
  for (const Layer& layer : layers_) {
    keys_.push_back(cache.tensors.at(layer.cache_name + ".k").mutable_data_ptr<float>());
    values_.push_back(cache.tensors.at(layer.cache_name + ".v").mutable_data_ptr<float>());
  }
  const int64_t stride = cache.capacity * shape_.kv_heads * shape_.head_dim;
  kernels::Barrier barrier;
  if (threads == 1) return ThreadWork{*this, rows, stride, logits, barrier, 0, 1}.run();
#pragma omp parallel num_threads(threads)
  ThreadWork{*this, rows, stride, logits, barrier, omp_get_thread_num(), omp_get_num_threads()}.run();
}

}  // namespace cairn::model
