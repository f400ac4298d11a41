// x + out(head_norm(o) * silu(z)) with o the linear attention of norm(x) (linear_attention_block.h), hand-written.
//
//   forward   in = norm(x), gathered over tp;  q, k, v, z = in w^T;  gate = up(down(in));  g = logsigmoid(gate) / normalizer, fp32
//             o = linear attention (context/linear_attention.h);  mixed = head_norm(o) silu(z);  x + mixed w_out^T, reduced
//   backward  the same steps in reverse. Saved: x or in, q to z, the gate before its sigmoid, o and the statistics of its norm, and the
//             state that came in from the ranks before. States of chunks are recomputed.
#include "model/decoder/linear_attention_block.h"

#include <cmath>

#include <ATen/ops/log_sigmoid.h>
#include <fmt/format.h>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"
#include "model/context/layout.h"
#include "model/context/linear_attention.h"
#include "model/decoder/residual_stream.h"
#include "model/decoder/rows.h"

namespace cairn::model {
namespace {

using Decay = LinearAttentionShape::Decay;

// The log decays of RetNet's heads [begin, begin + count): alpha = 1 - 2^(-5 - head).
at::Tensor constant_decays(int64_t begin, int64_t count, const at::TensorOptions& options) {
  return at::log(1 - at::pow(2, -5 - at::arange(begin, begin + count, options)));
}

class LinearAttentionBlock final : public Block {
 public:
  LinearAttentionBlock(const LinearAttentionShape& shape, int64_t embed, double dropout, BlockIo io, LinearAttentionParts parts)
      : shape_(shape), parts_(std::move(parts)), branch_(std::move(io), parts_.norm, embed, dropout) {
    const auto width = static_cast<double>(embed), keys = static_cast<double>(shape.heads * shape.key_dim),
               values = static_cast<double>(shape.heads * shape.value_dim), chunk = static_cast<double>(shape.chunk);
    BlockOp project{
        .name = "qkvz", .axes = {"heads"}, .flops_per_token = 4 * width * (keys + values), .saved_elements_per_token = 2 * (keys + values)};
    parts_.qkvz.describe(project);
    card_.optional_reads = {"documents"};
    card_.operations.push_back(std::move(project));
    std::vector<std::string> mixes{"qkvz.0", "qkvz.1", "qkvz.2"};
    if (gated()) {
      const auto rank = static_cast<double>(shape.gate_rank);
      BlockOp down{.name = "gate_down", .axes = {"rank"}, .flops_per_token = 2 * width * rank, .saved_elements_per_token = rank};
      down.reads = {parts_.norm ? "norm" : branch_.reads()};
      parts_.gate_down.describe(down);
      BlockOp up{.name = "gate_up", .axes = {"heads"}, .flops_per_token = 2 * rank * keys, .saved_elements_per_token = keys};
      up.reads = {"gate_down"};
      parts_.gate_up.describe(up);
      card_.operations.push_back(std::move(down)), card_.operations.push_back(std::move(up));
      mixes.push_back("gate_up");
    }
    // Within a chunk half of the pairs, then what is read from and added to the state.
    card_.operations.push_back({.name = "linear_attention",
                                .kind = BlockOp::Kind::other,
                                .axes = {"heads"},
                                .flops_per_token = chunk * (keys + values) + 4 * keys * static_cast<double>(shape.value_dim),
                                .saved_elements_per_token = values,
                                .reads = mixes,
                                .heads = shape.heads,
                                .width = shape.heads * shape.value_dim,
                                .by_sample = true});
    card_.operations.push_back({.name = "head_norm",
                                .kind = BlockOp::Kind::norm,
                                .parameters = parts_.head_norm.parameters(),
                                .axes = {"heads"},
                                .flops_per_token = 4 * values});
    card_.operations.push_back({.name = "output_gate",
                                .kind = BlockOp::Kind::multiply,
                                .axes = {"heads"},
                                .flops_per_token = 5 * values,
                                .reads = {"head_norm", "qkvz.3"}});
    BlockOp out{.name = "out", .axes = {"embed"}, .flops_per_token = 2 * values * width};
    parts_.out.describe(out);
    card_.operations.push_back(std::move(out));
    branch_.describe(card_);
  }

  const Card& card() const override { return card_; }

  void forward(Values& values, Saved* keep, const Call& call) const override {
    at::Tensor projected, low, gate;
    const ResidualBranch::In in = branch_.begin_forward(values, keep, call, [&](const at::Tensor& all, int64_t begin, int64_t count) {
      const at::Tensor from = all.narrow(0, begin, count);
      if (!projected.defined()) projected = at::empty({all.size(0), parts_.qkvz.out_width(call)}, all.options());
      parts_.qkvz.forward(projected.narrow(0, begin, count), from, call, nullptr, nullptr, begin);
      if (!gated()) return;
      if (!low.defined()) low = at::empty({all.size(0), parts_.gate_down.out_width(call)}, all.options());
      parts_.gate_down.forward(low.narrow(0, begin, count), from, call, nullptr, nullptr, begin);
    });
    progress_messages(call);
    if (gated()) {
      gate = at::empty({low.size(0), parts_.gate_up.out_width(call)}, low.options());
      parts_.gate_up.forward(gate, low, call);
    }
    const auto [batch, length] = in.batch_shape;
    const Heads heads = split(projected, batch, length, call);
    kernels::LinearAttention on = problem(heads, gate, call);
    if (values.has("documents"))
      on.starts = document_starts(values.get("documents"), call.slice.context ? call.slice.context->document_before : at::Tensor());
    const at::Tensor o = at::empty_like(on.v, at::MemoryFormat::Contiguous);
    at::Tensor initial;
    if (call.cache) {
      decode(o, on, call);
    } else {
      initial = linear_attention(o, on, context(call)).initial;
    }
    const at::Tensor read = o.to(projected.scalar_type());
    const Norm::Result normed = parts_.head_norm.forward(read, call);
    const at::Tensor mixed = normed.y * at::silu(heads.z);
    progress_messages(call);
    branch_.end_forward(values, in, mixed.view({batch * length, -1}), parts_.out, call);
    if (!keep) return;
    CAIRN_CHECK(!call.cache, "{}: a state cache is for decoding, not for gradients", card_.name);
    keep->put("qkvz", projected);
    if (gated()) keep->put("low", low), keep->put("gate", gate);
    keep->put("o", read);
    keep->put("head_statistics", normed.statistics);
    if (initial.defined()) keep->put("initial", initial);  // without it only ranks after the first would be wrong, and not by much
    if (on.starts.defined()) keep->put("starts", on.starts);
  }

  void backward_input(Values& gradients, Saved& saved, const Call& call) const override {
    const at::Tensor projected = saved.take("qkvz"), o = saved.get("o");
    const at::Tensor gate = gated() ? saved.take("gate") : at::Tensor();
    const int64_t batch = o.size(0), length = o.size(1);
    const Heads heads = split(projected, batch, length, call);
    const at::Tensor dmixed = at::empty({batch * length, o.size(2) * o.size(3)}, o.options());
    const ResidualBranch::Back back =
        branch_.begin_backward(gradients, saved, call, [&](const at::Tensor& all, int64_t begin, int64_t count) {
          parts_.out.input_gradient(dmixed.narrow(0, begin, count), all.narrow(0, begin, count), call, nullptr, nullptr, begin);
        });
    progress_messages(call);
    // mixed = y silu(z), y = head_norm(o)
    const at::Tensor y = parts_.head_norm.forward(o, call).y, s = at::sigmoid(heads.z), silu = heads.z * s, d = dmixed.view(o.sizes());
    const at::Tensor dprojected = at::empty_like(projected);
    const Heads into = split(dprojected, batch, length, call);
    into.z.copy_(d * y * (s * (1 + heads.z * (1 - s))));
    const at::Tensor dy = (d * silu).contiguous(), dout = at::empty_like(o);
    parts_.head_norm.input_gradient(dout, dy, o, saved.get("head_statistics"), call);
    saved.put("mixed", (y * silu).view(dmixed.sizes()));
    saved.put("dy_head", dy);

    kernels::LinearAttention on = problem(heads, gate, call);
    if (saved.has("starts")) on.starts = saved.take("starts");
    const bool wide = !on.q.is_same(heads.q);  // half precision is computed in fp32
    const kernels::LinearGradients direct{into.q, into.k, into.v};
    const kernels::LinearGradients found =
        wide ? kernels::LinearGradients{at::empty_like(on.q), at::empty_like(on.k), at::empty_like(on.v)} : direct;
    const at::Tensor dg = gated() ? at::empty(on.q.sizes(), on.log_decay.options()) : at::Tensor();
    linear_attention_backward(found, dg, on, kernels::widened(dout), saved.has("initial") ? saved.take("initial") : at::Tensor(),
                              context(call));
    if (wide) into.q.copy_(found.q), into.k.copy_(found.k), into.v.copy_(found.v);
    progress_messages(call);
    at::Tensor dgate, dlow;
    if (gated()) {
      dgate = (dg.view(gate.sizes()) * at::sigmoid(-gate.to(dg.scalar_type())) / shape_.gate_normalizer).to(gate.scalar_type());
      dlow = at::empty_like(saved.get("low"));
      parts_.gate_up.input_gradient(dlow, dgate, call);
    }
    const at::Tensor din = at::empty_like(back.dout);
    branch_.end_backward(
        gradients, saved, back, din,
        [&](const at::Tensor& sums, int64_t begin, int64_t count) {
          const at::Tensor here = sums.narrow(0, begin, count);
          parts_.qkvz.input_gradient(here, dprojected.narrow(0, begin, count), call, nullptr, nullptr, begin);
          if (!gated()) return;
          const at::Tensor more = at::empty_like(here, at::MemoryFormat::Contiguous);
          parts_.gate_down.input_gradient(more, dlow.narrow(0, begin, count), call, nullptr, nullptr, begin);
          here.add_(more);
        },
        call);
    saved.put("dout", back.dout);
    saved.put("dqkvz", dprojected);
    if (gated()) saved.put("dgate", dgate), saved.put("dlow", dlow);
  }

  void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const override {
    parts_.out.product_gradient(into, Operand::take(saved, "mixed"), Operand::take(saved, "dout"), call);
    parts_.head_norm.weight_gradient(into, saved.take("dy_head"), saved.take("o"), saved.take("head_statistics"), call);
    progress_messages(call);
    const Operand in = Operand::take(saved, "in");
    if (gated()) {
      parts_.gate_up.weight_gradient(into, Operand::take(saved, "low"), Operand::take(saved, "dgate"), call);
      parts_.gate_down.weight_gradient(into, in, Operand::take(saved, "dlow"), call);
    }
    parts_.qkvz.weight_gradient(into, in, Operand::take(saved, "dqkvz"), call);
    branch_.weight_gradients(saved, into, parts_.out, call);
  }

  void plain(Values& values, const Call& call) const override {
    const at::Tensor x = branch_.plain_in(values, call);
    const Heads heads = split(parts_.qkvz.plain(x, call), x.size(0), x.size(1), call);
    const at::Tensor gate = gated() ? parts_.gate_up.plain(parts_.gate_down.plain(x, call), call) : at::Tensor();
    kernels::LinearAttention on = problem(heads, gate, call);
    if (values.has("documents")) on.starts = document_starts(values.get("documents"), {});
    const at::Tensor o = kernels::reference::linear_attention(on).out;
    branch_.plain_out(values, parts_.out.plain((parts_.head_norm.plain(o, call) * at::silu(heads.z)).flatten(2), call));
  }

 private:
  // Views [batch, length, heads, key_dim or value_dim].
  struct Heads {
    at::Tensor q, k, v, z;
  };

  bool gated() const { return shape_.decay == Decay::gated; }

  // The heads of this rank, from the widths of its weights: tensor parallelism splits them.
  int64_t local_heads(const Call& call) const { return parts_.out.in_width(call) / shape_.value_dim; }

  // Ranks along tp may hold unequally many heads; those of the queries come first in the weight.
  int64_t first_head(const Call& call) const {
    return local_rows({parts_.qkvz.weight.first, 1}, shape_.heads * shape_.key_dim, call).begin / shape_.key_dim;
  }

  Heads split(const at::Tensor& rows, int64_t batch, int64_t length, const Call& call) const {
    const int64_t heads = local_heads(call), keys = heads * shape_.key_dim, values = heads * shape_.value_dim;
    const at::Tensor all = rows.view({batch, length, 2 * (keys + values)});
    const auto part = [&](int64_t begin, int64_t width, int64_t dim) { return all.narrow(2, begin, width).unflatten(2, {heads, dim}); };
    return {part(0, keys, shape_.key_dim), part(keys, keys, shape_.key_dim), part(2 * keys, values, shape_.value_dim),
            part(2 * keys + values, values, shape_.value_dim)};
  }

  kernels::LinearAttention problem(const Heads& heads, const at::Tensor& gate, const Call& call) const {
    kernels::LinearAttention on{kernels::widened(heads.q), kernels::widened(heads.k), kernels::widened(heads.v)};
    on.chunk = shape_.chunk;
    if (gated()) {
      const at::Tensor wide = kernels::widened(gate);
      on.log_decay = (at::log_sigmoid(wide) / shape_.gate_normalizer).view(on.q.sizes());
    } else if (shape_.decay == Decay::constant) {
      const int64_t count = on.q.size(2), begin = first_head(call);
      on.log_decay = constant_decays(begin, count, on.q.options()).view({1, 1, count, 1}).expand(on.q.sizes());
    }
    return on;
  }

  // The ranks that hold the sequence; null: this one alone.
  static comm::Group* group(const Call& call) {
    const ContextLayout* layout = call.slice.context;
    return !layout ? nullptr : layout->group ? layout->group : call.axes.find("cp");
  }

  LinearContext context(const Call& call) const {
    const ContextLayout* layout = call.slice.context;
    if (!layout) return {};
    int64_t end = 0;
    for (const std::vector<mesh::Interval>& own : layout->split.pieces) {
      CAIRN_CHECK(own.empty() || (own.size() == 1 && own[0].begin == end),
                  "{}: slices of the sequence must be contiguous and in the order of the ranks", card_.name);
      if (!own.empty()) end = own[0].end;
    }
    return {group(call), layout->linear, layout->scan_blocks, layout->state_dtype, {}};
  }

  // Reads from and updates the state of each sequence.
  void decode(const at::Tensor& o, const kernels::LinearAttention& on, const Call& call) const {
    at::Tensor& kept = call.cache->states[card_.name + ".state"];
    const kernels::LinearStates states = kernels::linear_states(on);
    const at::Tensor initial = kept.defined() && call.slice.begin > 0 ? kept.contiguous() : at::Tensor();
    kernels::attend_within_chunks(o, on);
    kernels::attend_earlier_chunks(o, on, states, initial);
    const at::Tensor end = initial.defined() ? states.end + states.decay.unsqueeze(3) * initial : states.end;
    kept.defined() ? void(kept.copy_(end)) : void(kept = end);
  }

  LinearAttentionShape shape_;
  LinearAttentionParts parts_;
  ResidualBranch branch_;
  Card card_;
};

}  // namespace

std::unique_ptr<Block> make_linear_attention_block(const LinearAttentionShape& shape, int64_t embed, double dropout, BlockIo io,
                                                   LinearAttentionParts parts) {
  return std::make_unique<LinearAttentionBlock>(shape, embed, dropout, std::move(io), std::move(parts));
}

}  // namespace cairn::model
