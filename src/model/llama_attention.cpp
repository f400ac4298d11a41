// x + attention(norm(x)) with grouped queries and rotary positions; keys and values of earlier positions may come from a cache.

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "model/llama.h"
#include "model/llama_blocks.h"
#include "model/plain_ops.h"
#include "model/rows.h"

namespace cairn::model {
namespace {

class Attention final : public Block {
 public:
  Attention(const LlamaShape& shape, std::string name, std::string reads, std::string writes, AttentionParameters parameters)
      : shape_(shape), reads_(std::move(reads)), writes_(std::move(writes)), parameters_(parameters) {
    const double embed = static_cast<double>(shape.embed), q = static_cast<double>(shape.heads * shape.head_dim),
                 kv = static_cast<double>(shape.kv_heads * shape.head_dim);
    card_ = {.name = std::move(name),
             .reads = {reads_},
             .writes = {writes_},
             .operations = {{.name = "norm",
                             .kind = Operation::Kind::norm,
                             .parameters = {parameters.norm},
                             .axes = {"embed"},
                             .flops_per_token = 4 * embed,
                             .saved_elements_per_token = 2 * embed},
                            {.name = "qkv",
                             .kind = Operation::Kind::product,
                             .parameters = {parameters.qkv},
                             .axes = {"heads"},
                             .flops_per_token = 2 * embed * (q + 2 * kv),
                             .saved_elements_per_token = q + 2 * kv},
                            {.name = "attention",
                             .kind = Operation::Kind::attention,
                             .axes = {"heads"},
                             .flops_per_pair = 4 * q,
                             .saved_elements_per_token = q + static_cast<double>(shape.heads)},
                            {.name = "out",
                             .kind = Operation::Kind::product,
                             .parameters = {parameters.out},
                             .axes = {"embed"},
                             .flops_per_token = 2 * q * embed}},
             .buffers = {"rope.cos", "rope.sin"}};
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    const at::Tensor x = values.get(reads_);  // [batch, length, embed]
    const int64_t batch = x.size(0), length = x.size(1);
    const at::Tensor normed = at::empty_like(x), rstd = at::empty({batch * length}, x.options());
    kernels::rms_norm(normed, rstd, x, call.weights.get(parameters_.norm), shape_.norm_eps);
    const at::Tensor qkv = at::empty({batch, length, (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim}, x.options());
    kernels::linear(rows(qkv), rows(normed), call.weights.get(parameters_.qkv));
    auto [q, k, v] = split(qkv);
    const kernels::RopeTable table = tables(call);
    kernels::rope(q, table, call.slice.begin);
    kernels::rope(k, table, call.slice.begin);
    if (call.cache) std::tie(k, v) = remember(k, v, call);

    const at::Tensor mixed = at::empty({batch, length, shape_.heads, shape_.head_dim}, x.options());
    const at::Tensor lse = at::empty({batch, shape_.heads, length}, x.options());
    kernels::attention(mixed, lse, q, k, v, {.query_offset = call.slice.begin, .key_offset = call.cache ? 0 : call.slice.begin});
    const at::Tensor y = at::empty_like(x);
    kernels::linear(rows(y), mixed.view({batch * length, -1}), call.weights.get(parameters_.out));
    y.add_(x);
    values.put(writes_, y);
    if (!keep) return;
    CAIRN_CHECK(!call.cache, "{}: a cache serves decoding, not gradients", card_.name);
    keep->put("x", x);
    keep->put("normed", normed);
    keep->put("rstd", rstd);
    keep->put("qkv", qkv);
    keep->put("mixed", mixed);
    keep->put("lse", lse);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor dy = gradients.take(writes_);
    const at::Tensor qkv = saved.take("qkv"), mixed = saved.get("mixed"), lse = saved.take("lse"), x = saved.get("x");
    const auto [q, k, v] = split(qkv);
    const at::Tensor dmixed = at::empty_like(mixed);
    kernels::linear_input(dmixed.view({rows(dy).size(0), -1}), rows(dy), call.weights.get(parameters_.out));
    const at::Tensor dqkv = at::empty_like(qkv);
    const auto [dq, dk, dv] = split(dqkv);
    kernels::attention_backward(dq, dk, dv, dmixed, q, k, v, mixed, lse,
                                {.query_offset = call.slice.begin, .key_offset = call.slice.begin});
    const kernels::RopeTable table = tables(call);
    kernels::rope(dq, table, call.slice.begin, /*inverse=*/true);
    kernels::rope(dk, table, call.slice.begin, /*inverse=*/true);
    const at::Tensor dnormed = at::empty_like(dy), dx = at::empty_like(dy);
    kernels::linear_input(rows(dnormed), rows(dqkv), call.weights.get(parameters_.qkv));
    kernels::rms_norm_input(dx, dnormed, x, call.weights.get(parameters_.norm), saved.get("rstd"), &dy);
    gradients.add(reads_, dx);
    saved.put("dy", dy);
    saved.put("dqkv", dqkv);
    saved.put("dnormed", dnormed);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call&) const override {
    const at::Tensor dy = rows(saved.take("dy"));
    into.outer(parameters_.out, saved.take("mixed").view({dy.size(0), -1}), dy);
    into.outer(parameters_.qkv, rows(saved.take("normed")), rows(saved.take("dqkv")));
    const at::Tensor dnorm = at::empty({shape_.embed}, dy.options());
    kernels::rms_norm_weight(dnorm, saved.take("dnormed"), saved.take("x"), saved.take("rstd"));
    into.add(parameters_.norm, dnorm);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = values.get(reads_);
    const at::Tensor normed = plain_rms_norm(x, call.weights.get(parameters_.norm), shape_.norm_eps);
    const auto [q, k, v] = split(at::matmul(normed, call.weights.get(parameters_.qkv).t()));
    const int64_t begin = call.slice.begin, end = begin + x.size(1);
    const at::Tensor cos = call.buffers.at("rope.cos").slice(0, begin, end), sin = call.buffers.at("rope.sin").slice(0, begin, end);
    const at::Tensor mixed = plain_attention(plain_rope(q, cos, sin), plain_rope(k, cos, sin), v);
    values.put(writes_, x + at::matmul(mixed.flatten(2), call.weights.get(parameters_.out).t()));
  }

 private:
  // Views of the fused projection: query, key and value heads, [batch, length, heads, head_dim] each.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> split(const at::Tensor& qkv) const {
    const at::Tensor heads = qkv.view({qkv.size(0), qkv.size(1), -1, shape_.head_dim});
    return {heads.narrow(2, 0, shape_.heads), heads.narrow(2, shape_.heads, shape_.kv_heads),
            heads.narrow(2, shape_.heads + shape_.kv_heads, shape_.kv_heads)};
  }

  static kernels::RopeTable tables(const Call& call) { return {call.buffers.at("rope.cos"), call.buffers.at("rope.sin")}; }

  // Writes keys and values into the cache at this slice's place; gives back all there are up to its end.
  std::pair<at::Tensor, at::Tensor> remember(const at::Tensor& k, const at::Tensor& v, const Call& call) const {
    const int64_t end = call.slice.begin + k.size(1);
    CAIRN_CHECK(end <= call.cache->capacity, "{}: position {} is beyond the cache's {}", card_.name, end, call.cache->capacity);
    const auto store = [&](const std::string& name, const at::Tensor& part) {
      at::Tensor& kept = call.cache->tensors[card_.name + name];
      if (!kept.defined()) kept = at::empty({part.size(0), call.cache->capacity, part.size(2), part.size(3)}, part.options());
      kept.narrow(1, call.slice.begin, part.size(1)).copy_(part);
      return kept.narrow(1, 0, end);
    };
    return {store(".k", k), store(".v", v)};
  }

  LlamaShape shape_;
  std::string reads_, writes_;
  AttentionParameters parameters_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_llama_attention(const LlamaShape& shape, std::string name, std::string reads, std::string writes,
                                            AttentionParameters parameters) {
  return std::make_unique<Attention>(shape, std::move(name), std::move(reads), std::move(writes), parameters);
}

}  // namespace cairn::model
