// Gated linear attention in batched ATen operations: any dtype and device. All chunks of all heads are one batch of each product; only the
// scan over chunks is a loop. Tensors inside are [batch, heads, chunks, chunk, dim], padded with zeros, and fp32 (fp64 with an fp64 q).
#include "kernels/linear_attention/chunked.h"

#include <cmath>
#include <tuple>
#include <vector>

#include <ATen/ops/constant_pad_nd.h>

#include "kernels/aten.h"

namespace cairn::kernels::chunked {
namespace {

at::ScalarType sums_of(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// [batch, length, heads, dim] to [batch, heads, chunks, chunk, dim], and back.
at::Tensor in_chunks(const at::Tensor& x, int64_t chunk, at::ScalarType type) {
  const int64_t length = x.size(1), chunks = (length + chunk - 1) / chunk;
  const at::Tensor padded = at::constant_pad_nd(x.to(type).transpose(1, 2), {0, 0, 0, chunks * chunk - length});
  return padded.reshape({x.size(0), x.size(2), chunks, chunk, x.size(3)});
}
at::Tensor in_tokens(const at::Tensor& x, int64_t length) {
  return x.reshape({x.size(0), x.size(1), x.size(2) * x.size(3), x.size(4)}).narrow(2, 0, length).transpose(1, 2);
}

// A problem in chunks.
struct Chunks {
  at::Tensor q, k, v;
  at::Tensor b;        // inclusive sums of g from the chunk's begin; undefined: no decay
  at::Tensor segment;  // documents that started in the chunk so far, [batch, 1, chunks, chunk]; undefined: none
  double scale;
  int64_t length, chunk;

  explicit Chunks(const LinearAttention& on)
      : scale(on.scale != 0 ? on.scale : 1 / std::sqrt(static_cast<double>(on.q.size(3)))), length(on.q.size(1)), chunk(on.chunk) {
    const at::ScalarType type = sums_of(on.q);
    q = in_chunks(on.q, chunk, type) * scale, k = in_chunks(on.k, chunk, type), v = in_chunks(on.v, chunk, type);
    if (on.log_decay.defined()) b = in_chunks(on.log_decay, chunk, type).cumsum(3);
    if (on.starts.defined()) segment = in_chunks(on.starts.unsqueeze(2).unsqueeze(3), chunk, at::kFloat).squeeze(4).cumsum(3);
  }

  at::Tensor sum() const { return b.narrow(3, chunk - 1, 1); }  // b_C
  at::Tensor last_segment() const { return segment.narrow(3, chunk - 1, 1); }
  // Zero in tokens that do not see the state before their chunk; in tokens that the state after it has forgotten.
  at::Tensor seeing(const at::Tensor& x) const { return segment.defined() ? x * (segment == 0).unsqueeze(4) : x; }
  at::Tensor remembered(const at::Tensor& x) const { return segment.defined() ? x * (segment == last_segment()).unsqueeze(4) : x; }
  at::Tensor from_before(const at::Tensor& x) const { return seeing(b.defined() ? x * b.exp() : x); }
  at::Tensor to_after(const at::Tensor& x) const { return remembered(b.defined() ? x * (sum() - b).exp() : x); }
  // What is left of a state after each chunk, [batch, heads, chunks, key_dim].
  at::Tensor gamma() const {
    const at::Tensor whole = b.defined() ? sum().squeeze(3).exp() : at::ones({k.size(0), k.size(1), k.size(2), k.size(4)}, k.options());
    return segment.defined() ? whole * (last_segment() == 0) : whole;
  }
};

// What tokens read from others of their chunk is made level by level. Blocks of `width` tokens have a left and a right half; tokens of the
// right read those of the left. Shapes: [batch, heads, chunks, blocks, half, dim].
struct Level {
  const Chunks& c;
  int64_t half;

  std::vector<at::Tensor> halves(const at::Tensor& x) const {
    const at::Tensor blocks = x.view({x.size(0), x.size(1), x.size(2), c.chunk / (2 * half), 2, half, x.size(4)});
    return {blocks.select(4, 0), blocks.select(4, 1)};
  }
  // exp(b_m - b_j) of the left half, exp(b_r - b_m) of the right.
  std::vector<at::Tensor> decays() const {
    const std::vector<at::Tensor> b = halves(c.b);
    const at::Tensor m = b[0].narrow(4, half - 1, 1);
    return {(m - b[0]).exp(), (b[1] - m).exp()};
  }
  at::Tensor visible(const at::Tensor& scores) const {
    if (!c.segment.defined()) return scores;
    const std::vector<at::Tensor> documents = halves(c.segment.unsqueeze(4));
    return scores * (documents[1] == documents[0].transpose(4, 5));
  }
};

template <class Visit>
void each_level(const Chunks& c, const Visit& visit) {
  for (int64_t half = c.chunk / 2; half > 0; half /= 2) visit(Level{c, half});
}

at::Tensor with_incoming(const at::Tensor& own, const at::Tensor& factors, const at::Tensor& incoming) {
  return incoming.defined() ? own + factors.unsqueeze(4) * incoming.unsqueeze(2) : own;
}

}  // namespace

LinearStates linear_states(const LinearAttention& on) {
  const Chunks c(on);
  const at::Tensor added = at::matmul(c.to_after(c.k).transpose(3, 4), c.v), gamma = c.gamma();
  LinearStates s{at::empty_like(added), at::empty_like(gamma), {}, {}};
  s.end = at::zeros({added.size(0), added.size(1), added.size(3), added.size(4)}, added.options());
  s.decay = at::ones({added.size(0), added.size(1), added.size(3)}, added.options());
  for (int64_t n = 0; n < added.size(2); ++n) {
    s.before.select(2, n).copy_(s.end), s.factors.select(2, n).copy_(s.decay);
    s.end = s.end * gamma.select(2, n).unsqueeze(3) + added.select(2, n);
    s.decay = s.decay * gamma.select(2, n);
  }
  return s;
}

void attend_within_chunks(const at::Tensor& out, const LinearAttention& on) {
  const Chunks c(on);
  const at::Tensor o = (c.q * c.k).sum(4, /*keepdim=*/true) * c.v;
  each_level(c, [&](const Level& level) {
    at::Tensor q = level.halves(c.q)[1], k = level.halves(c.k)[0];
    if (c.b.defined()) k = k * level.decays()[0], q = q * level.decays()[1];
    const at::Tensor scores = level.visible(at::matmul(q, k.transpose(4, 5)));
    level.halves(o)[1].add_(at::matmul(scores, level.halves(c.v)[0]));
  });
  out.copy_(in_tokens(o, c.length));
}

void attend_earlier_chunks(const at::Tensor& out, const LinearAttention& on, const LinearStates& states, const at::Tensor& initial) {
  const Chunks c(on);
  out.add_(in_tokens(at::matmul(c.from_before(c.q), with_incoming(states.before, states.factors, initial)), c.length));
}

LinearStateGradients linear_state_gradients(const LinearAttention& on, const at::Tensor& dout) {
  const Chunks c(on);
  const at::Tensor added = at::matmul(c.from_before(c.q).transpose(3, 4), in_chunks(dout, c.chunk, c.v.scalar_type())), gamma = c.gamma();
  LinearStateGradients g{at::empty_like(added), at::empty_like(gamma), {}, {}};
  g.begin = at::zeros({added.size(0), added.size(1), added.size(3), added.size(4)}, added.options());
  g.decay = at::ones({added.size(0), added.size(1), added.size(3)}, added.options());
  for (int64_t n = added.size(2) - 1; n >= 0; --n) {
    g.after.select(2, n).copy_(g.begin), g.factors.select(2, n).copy_(g.decay);
    g.begin = g.begin * gamma.select(2, n).unsqueeze(3) + added.select(2, n);
    g.decay = g.decay * gamma.select(2, n);
  }
  return g;
}

void attend_within_chunks_backward(const LinearGradients& into, const LinearAttention& on, const at::Tensor& dout) {
  const Chunks c(on);
  const at::Tensor d = in_chunks(dout, c.chunk, c.v.scalar_type());
  const at::Tensor own = (d * c.v).sum(4, /*keepdim=*/true);
  const at::Tensor dq = own * c.k * c.scale, dk = own * c.q, dv = (c.q * c.k).sum(4, /*keepdim=*/true) * d;
  each_level(c, [&](const Level& level) {
    at::Tensor q = level.halves(c.q)[1], k = level.halves(c.k)[0];
    const std::vector<at::Tensor> decays = c.b.defined() ? level.decays() : std::vector<at::Tensor>();
    if (c.b.defined()) k = k * decays[0], q = q * decays[1];
    const at::Tensor right = level.halves(d)[1];
    const at::Tensor scores = level.visible(at::matmul(q, k.transpose(4, 5)));
    const at::Tensor dscores = level.visible(at::matmul(right, level.halves(c.v)[0].transpose(4, 5)));
    level.halves(dv)[0].add_(at::matmul(scores.transpose(4, 5), right));
    at::Tensor to_q = at::matmul(dscores, k), to_k = at::matmul(dscores.transpose(4, 5), q);
    if (c.b.defined()) to_k = to_k * decays[0], to_q = to_q * decays[1];
    level.halves(dq)[1].add_(to_q, c.scale);
    level.halves(dk)[0].add_(to_k);
  });
  into.q.copy_(in_tokens(dq, c.length)), into.k.copy_(in_tokens(dk, c.length)), into.v.copy_(in_tokens(dv, c.length));
}

void attend_earlier_chunks_backward(const LinearGradients& into, const LinearAttention& on, const at::Tensor& dout,
                                    const LinearStates& states, const at::Tensor& initial, const LinearStateGradients& gradients,
                                    const at::Tensor& end) {
  const Chunks c(on);
  const at::Tensor d = in_chunks(dout, c.chunk, c.v.scalar_type());
  const at::Tensor before = with_incoming(states.before, states.factors, initial);
  const at::Tensor after = with_incoming(gradients.after, gradients.factors, end);
  into.q.add_(in_tokens(c.from_before(at::matmul(d, before.transpose(3, 4))), c.length), c.scale);
  into.k.add_(in_tokens(c.to_after(at::matmul(c.v, after.transpose(3, 4))), c.length));
  into.v.add_(in_tokens(at::matmul(c.to_after(c.k), after), c.length));
}

void linear_decay_gradient(const at::Tensor& dg, const LinearAttention& on, const LinearGradients& gradients, const at::Tensor& base) {
  if (on.q.size(1) == 0) return;
  const at::ScalarType type = sums_of(on.q);
  const at::Tensor sums = (on.q.to(type) * gradients.q.to(type) - on.k.to(type) * gradients.k.to(type)).flip(1).cumsum(1).flip(1);
  if (!on.starts.defined()) {
    dg.copy_(base.defined() ? sums + base.unsqueeze(1) : sums);
    return;
  }
  // The sum from each token on, less the sum from the next document's start on.
  const int64_t length = sums.size(1);
  const at::Tensor index = at::arange(length, on.starts.options().dtype(at::kLong)).unsqueeze(0);
  const at::Tensor here = index.masked_fill(~on.starts, length);  // of each start its place, elsewhere the end
  const at::Tensor next = at::constant_pad_nd(here.narrow(1, 1, length - 1), {0, 1}, length).flip(1);
  const at::Tensor until = std::get<0>(next.cummin(1)).flip(1);
  const at::Tensor beyond = at::constant_pad_nd(sums, {0, 0, 0, 0, 0, 1});
  const at::Tensor picked = until.unsqueeze(2).unsqueeze(3).expand({sums.size(0), length, sums.size(2), sums.size(3)});
  at::Tensor found = sums - beyond.gather(1, picked);
  if (base.defined()) found = found + base.unsqueeze(1) * (until == length).unsqueeze(2).unsqueeze(3);
  dg.copy_(found.masked_fill(on.starts.unsqueeze(2).unsqueeze(3), 0));
}

}  // namespace cairn::kernels::chunked
