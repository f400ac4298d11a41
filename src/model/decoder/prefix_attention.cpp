// With o_i, l_i over disjoint keys: l = log(e^l_1 + e^l_2), o = e^(l_1 - l) o_1 + e^(l_2 - l) o_2.
#include "model/decoder/prefix_attention.h"

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/attention.h"

namespace cairn::model {
namespace {

// One stream's rows of a tensor whose rows are stream by stream.
at::Tensor of_stream(const at::Tensor& rows, int64_t stream, int64_t streams) {
  const int64_t batch = rows.size(0) / streams;
  return rows.narrow(0, stream * batch, batch);
}

// One stream's prefix as keys of `batch` sequences, [batch, tokens, kv_heads, head_dim]: a view, the same memory for all.
at::Tensor as_keys(const at::Tensor& prefixes, int64_t stream, int64_t batch) {
  const at::Tensor one = prefixes.select(0, stream).transpose(0, 1);
  return one.unsqueeze(0).expand({batch, one.size(0), one.size(1), one.size(2)});
}

int64_t checked_streams(const at::Tensor& q, const Prefixes& prefixes) {
  const int64_t streams = prefixes.k.size(0);
  CAIRN_CHECK(streams > 0 && q.size(0) % streams == 0, "{} sequences in {} streams", q.size(0), streams);
  return streams;
}

}  // namespace

void add_prefixes(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const Prefixes& prefixes) {
  const int64_t streams = checked_streams(q, prefixes), batch = q.size(0) / streams;
  for (int64_t s = 0; s < streams; ++s) {
    const at::Tensor out_of = of_stream(out, s, streams), lse_of = of_stream(lse, s, streams);
    const kernels::AttentionOutput before =
        kernels::attend(of_stream(q, s, streams), as_keys(prefixes.k, s, batch), as_keys(prefixes.v, s, batch), {.causal = false});
    const at::Tensor both = at::logaddexp(lse_of, before.lse);
    const auto share = [&](const at::Tensor& part) { return at::exp(part - both).transpose(1, 2).unsqueeze(3).to(out.scalar_type()); };
    out_of.mul_(share(lse_of)).add_(before.out * share(before.lse));
    lse_of.copy_(both);
  }
}

Prefixes prefix_gradients(const at::Tensor& dq, const at::Tensor& dout, const at::Tensor& q, const Prefixes& prefixes,
                          const at::Tensor& out, const at::Tensor& lse) {
  const int64_t streams = checked_streams(q, prefixes), batch = q.size(0) / streams;
  Prefixes d{at::empty_like(prefixes.k), at::empty_like(prefixes.v)};
  for (int64_t s = 0; s < streams; ++s) {
    const at::Tensor q_of = of_stream(q, s, streams), k = as_keys(prefixes.k, s, batch), v = as_keys(prefixes.v, s, batch);
    const kernels::AttentionGradients room{at::empty(q_of.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                                           at::empty(v.sizes(), v.options())};
    const kernels::AttentionGradients found =
        kernels::attention_gradients(room, of_stream(dout, s, streams).contiguous(), q_of, k, v, of_stream(out, s, streams),
                                     of_stream(lse, s, streams).contiguous(), {.causal = false});
    of_stream(dq, s, streams).add_(found.q);
    d.k.select(0, s).copy_(found.k.sum(0).transpose(0, 1));
    d.v.select(0, s).copy_(found.v.sum(0).transpose(0, 1));
  }
  return d;
}

at::Tensor streams_as_heads(const at::Tensor& x, int64_t streams) {
  const int64_t batch = x.size(0) / streams, length = x.size(1), heads = x.size(2), dim = x.size(3);
  return x.reshape({streams, batch, length, heads, dim}).permute({1, 2, 0, 3, 4}).reshape({batch, length, streams * heads, dim});
}

at::Tensor streams_as_rows(const at::Tensor& x, int64_t streams) {
  const int64_t batch = x.size(0), length = x.size(1), heads = x.size(2) / streams, dim = x.size(3);
  return x.reshape({batch, length, streams, heads, dim})
      .permute({2, 0, 1, 3, 4})
      .reshape({streams * batch, length, heads, dim})
      .contiguous();
}

Prefixes streams_as_heads(const Prefixes& prefixes) {
  const auto merged = [](const at::Tensor& x) { return x.view({1, x.size(0) * x.size(1), x.size(2), x.size(3)}); };
  return {merged(prefixes.k), merged(prefixes.v)};
}

}  // namespace cairn::model
