// Attention on a GPU by library: cuDNN where it supports the case (for documents: cudnn_varlen.h), because it is 1.5 times as fast on a
// Hopper GPU, else FlashAttention-2. Their backward passes are deterministic only under DeterministicAlgorithms (device.h); then
// FlashAttention-2 takes all cases. Both allocate their results.
#include "kernels/attention/attention_cuda.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <ATen/Context.h>
#include <ATen/native/transformers/cuda/sdp_utils.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>

#include "kernels/aten.h"
#include "kernels/attention.h"
#include "kernels/attention/block_attention_cuda.h"
#include "kernels/attention/cudnn_varlen.h"
#include "kernels/attention/varlen_tables_kernel.h"
#include "kernels/cuda/tensor.h"
#include "kernels/low_precision.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kCudnnHeadDim = 128, kFlashHeadDim = 256;  // at most
constexpr int64_t kHeadDimStep = 8;                          // both take multiples of this

// The mask, simplified for the given lengths.
struct Mask {
  bool causal;       // query i sees keys up to i + (k_len - q_len): the last query sees the last key
  int64_t window;    // 0: none
  bool is_possible;  // false: no library has this mask
  bool documents;    // documents do not see each other
};

int64_t max_sequences(const AttentionOptions& options) {
  const int64_t places = options.document_starts->numel();
  return options.documents_max > 0 ? std::min(options.documents_max, places) : places;
}

Mask mask_of(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options) {
  const int64_t q_len = q.size(1), k_len = k.size(1), shift = options.query_offset - options.key_offset;
  const bool all_before = shift >= k_len - 1;  // even the first query sees every key
  const bool causal = options.causal && !all_before;
  // A window that reaches back from the last query to the first key hides nothing.
  const int64_t window = options.window > 0 && q_len - 1 + shift - options.window >= 0 ? options.window : 0;
  const bool lined_up = shift == k_len - q_len && shift >= 0;  // below 0 some queries see no key, which libraries treat differently
  constexpr int64_t kSequencesMax = 65535;                     // blocks of one dimension of a grid
  const at::Tensor* starts = options.document_starts;
  const bool is_varlen =
      starts != nullptr && starts->size(1) > 0 && max_sequences(options) <= kSequencesMax && q_len == k_len && shift == 0;
  const bool documents = options.key_documents != nullptr && !(is_varlen && starts->size(1) == 1);  // one a row hides nothing
  return {causal, window, (!documents || is_varlen) && ((!causal && window == 0) || lined_up), documents};
}

bool fits(const at::Tensor& x, const at::Tensor& like) {
  return is_on_gpu(x) && x.device() == like.device() && x.scalar_type() == like.scalar_type() && is_half_precision(x) && x.stride(3) == 1;
}

double scale_of(const at::Tensor& q, const AttentionOptions& options) {
  return options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

at::Tensor by_head(const at::Tensor& x) { return x.transpose(1, 2); }  // [batch, heads, length, head_dim], a view, and back

enum class Library { none, cudnn, flash };

// FlashAttention's varlen form: all rows one after the other, with the offsets of the sequences. Empty sequences come last.
struct PackedSequences {
  at::Tensor q, k, v;     // [positions of all rows, heads, head_dim], views
  at::Tensor cu_seqlens;  // int32 [max sequences + 1]; the last is the number of positions
  int64_t longest;        // upper bound of a sequence

  PackedSequences(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, const AttentionOptions& options)
      : q(queries.flatten(0, 1)), k(keys.flatten(0, 1)), v(values.flatten(0, 1)), longest(queries.size(1)) {
    const at::Tensor starts = options.document_starts->contiguous();
    const int64_t sequences = max_sequences(options);
    const at::Tensor tables = at::empty({2, sequences + 1}, starts.options());
    check_launch(launch_varlen_tables({.tables = tables.mutable_data_ptr<int32_t>(),
                                       .pitch = sequences + 1,
                                       .sequences = sequences,
                                       .starts = starts.const_data_ptr<int32_t>(),
                                       .rows = starts.size(0),
                                       .documents = starts.size(1),
                                       .length = longest,
                                       .tensors = 1,
                                       .strides = {1}},
                                      stream_of(queries)),
                 "varlen tables");
    cu_seqlens = tables.select(0, 1);
  }
};

// Log-sum-exps between libtorch's varlen layout, [heads, positions], and ours, [batch, heads, length].
at::Tensor packed_lse(const at::Tensor& lse) { return lse.transpose(0, 1).flatten(1).contiguous(); }
at::Tensor lse_by_row(const at::Tensor& lse, const at::Tensor& q) {
  CAIRN_CHECK(lse.dim() == 2 && lse.size(0) == q.size(2) && lse.size(1) == q.size(0) * q.size(1),
              "log-sum-exps of {} for queries of {}: another form than that of libtorch 2.11", c10::str(lse.sizes()), c10::str(q.sizes()));
  return lse.view({q.size(2), q.size(0), q.size(1)}).transpose(0, 1);
}

// The same choice for forward and backward.
Library library_for(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Mask& mask) {
  const int64_t head_dim = q.size(3);
  if (!mask.is_possible || !fits(q, q) || !fits(k, q) || !fits(v, q) || head_dim % kHeadDimStep != 0 || q.numel() == 0 || k.numel() == 0)
    return Library::none;
  // cuDNN aligns its causal mask with the first key, which is right only for as many queries as keys. It does not support a single query.
  const bool square = q.size(1) == k.size(1) && q.size(1) > 1;
  if (head_dim <= kCudnnHeadDim && mask.window == 0 && square && !mask.documents &&
      sdp::can_use_cudnn_attention({by_head(q), by_head(k), by_head(v), std::nullopt, 0.0, mask.causal, q.size(2) != k.size(2)},
                                   /*debug=*/false))
    return Library::cudnn;
  return head_dim <= kFlashHeadDim ? Library::flash : Library::none;
}

// FlashAttention's window: keys to the left and to the right of a query; unset: all.
struct Sides {
  std::optional<int64_t> left, right;
  explicit Sides(const Mask& mask) {
    if (mask.window > 0) left = mask.window - 1;
    if (mask.window > 0 && mask.causal) right = 0;
  }
};

// Variable-length attention by cuDNN, where it is possible and allowed: its gradients are not deterministic.
std::optional<VarlenAttention> varlen_for_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Mask& mask,
                                                double scale, const AttentionOptions& options) {
  if (!has_cudnn_varlen() || !mask.documents || mask.window > 0 || q.size(3) > kCudnnHeadDim) return std::nullopt;
  if (at::globalContext().deterministicAlgorithms()) return std::nullopt;
  return VarlenAttention{.q = q,
                         .k = k,
                         .v = v,
                         .starts = options.document_starts->contiguous(),
                         .sequences_max = max_sequences(options),
                         .causal = mask.causal,
                         .scale = scale};
}

// FlashAttention takes causality either as a flag or as a window.
bool is_plain_causal(const Mask& mask) { return mask.causal && mask.window == 0; }

}  // namespace

std::optional<AttentionOutput> attend_on_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                              const AttentionOptions& options) {
  if (!is_on_gpu(q)) return std::nullopt;
  if (options.pattern != nullptr) return block_attend_on_cuda(q, k, v, options);
  const Mask mask = mask_of(q, k, options);
  const double scale = scale_of(q, options);
  const CudaDeviceGuard device(q.device());
  const std::vector<int64_t> sums{q.size(0), q.size(2), q.size(1)};
  switch (library_for(q, k, v, mask)) {
    case Library::none:
      return std::nullopt;
    case Library::cudnn: {
      const auto found = at::_scaled_dot_product_cudnn_attention(by_head(q), by_head(k), by_head(v), /*attn_bias=*/std::nullopt,
                                                                 /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, mask.causal,
                                                                 /*return_debug_mask=*/false, scale);
      return AttentionOutput{by_head(std::get<0>(found)), std::get<1>(found).view(sums)};
    }
    case Library::flash: {
      if (const auto sequences = varlen_for_cudnn(q, k, v, mask, scale, options))
        if (std::optional<AttentionOutput> found = cudnn_varlen(*sequences)) return found;
      const Sides sides(mask);
      if (mask.documents) {
        const PackedSequences sequences(q, k, v, options);
        const auto found = at::_flash_attention_forward(
            sequences.q, sequences.k, sequences.v, sequences.cu_seqlens, sequences.cu_seqlens, sequences.longest, sequences.longest,
            /*dropout_p=*/0.0, is_plain_causal(mask), /*return_debug_mask=*/false, scale, sides.left, sides.right);
        return AttentionOutput{std::get<0>(found).view(q.sizes()), lse_by_row(std::get<1>(found), q)};
      }
      const auto found = at::_flash_attention_forward(q, k, v, /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt, q.size(1), k.size(1),
                                                      /*dropout_p=*/0.0, is_plain_causal(mask), /*return_debug_mask=*/false, scale,
                                                      sides.left, sides.right);
      return AttentionOutput{std::get<0>(found), std::get<1>(found).view(sums)};
    }
  }
  return std::nullopt;
}

bool attention_on_cuda(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const AttentionOptions& options) {
  const std::optional<AttentionOutput> found = attend_on_cuda(q, k, v, options);
  if (!found) return false;
  out.copy_(found->out);
  lse.copy_(found->lse);
  return true;
}

std::optional<AttentionGradients> attention_gradients_on_cuda(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                                              const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                                              const AttentionOptions& options) {
  if (!is_on_gpu(q) || !fits(dout, q) || !fits(out, q) || !all_fp32(q, lse)) return std::nullopt;
  if (options.pattern != nullptr) return block_gradients_on_cuda(dout.contiguous(), q, k, v, out, lse, options);
  const Mask mask = mask_of(q, k, options);
  const double scale = scale_of(q, options);
  const CudaDeviceGuard device(q.device());
  const at::Tensor unused = at::empty({2}, q.options().dtype(at::kUInt64));  // dropout state; there is no dropout
  // libtorch caches cuDNN's plans by the strides of q, k and v alone, so dout and out must always have the same strides.
  const at::Tensor gradient = dout.contiguous(), result = out.contiguous();
  switch (library_for(q, k, v, mask)) {
    case Library::none:
      return std::nullopt;
    case Library::cudnn: {
      const auto found = at::_scaled_dot_product_cudnn_attention_backward(
          by_head(gradient), by_head(q), by_head(k), by_head(v), by_head(result), lse.unsqueeze(3), unused, unused,
          /*attn_bias=*/at::Tensor(), /*cum_seq_q=*/at::Tensor(), /*cum_seq_k=*/at::Tensor(), q.size(1), k.size(1), /*dropout_p=*/0.0,
          mask.causal, scale);
      return AttentionGradients{by_head(std::get<0>(found)), by_head(std::get<1>(found)), by_head(std::get<2>(found))};
    }
    case Library::flash: {
      if (const auto sequences = varlen_for_cudnn(q, k, v, mask, scale, options))
        if (std::optional<AttentionGradients> found = cudnn_varlen_backward(*sequences, gradient, {result, lse})) return found;
      const Sides sides(mask);
      if (mask.documents) {
        const PackedSequences sequences(q, k, v, options);
        const auto found =
            at::_flash_attention_backward(gradient.flatten(0, 1), sequences.q, sequences.k, sequences.v, result.flatten(0, 1),
                                          packed_lse(lse), sequences.cu_seqlens, sequences.cu_seqlens, sequences.longest, sequences.longest,
                                          /*dropout_p=*/0.0, is_plain_causal(mask), unused, unused, scale, sides.left, sides.right);
        return AttentionGradients{std::get<0>(found).view(q.sizes()), std::get<1>(found).view(k.sizes()),
                                  std::get<2>(found).view(v.sizes())};
      }
      const auto found = at::_flash_attention_backward(gradient, q, k, v, result, lse, /*cum_seq_q=*/at::Tensor(),
                                                       /*cum_seq_k=*/at::Tensor(), q.size(1), k.size(1), /*dropout_p=*/0.0,
                                                       is_plain_causal(mask), unused, unused, scale, sides.left, sides.right);
      return AttentionGradients{std::get<0>(found), std::get<1>(found), std::get<2>(found)};
    }
  }
  return std::nullopt;
}

bool attention_backward_on_cuda(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& dout,
                                const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                const AttentionOptions& options) {
  const std::optional<AttentionGradients> found = attention_gradients_on_cuda(dout, q, k, v, out, lse, options);
  if (!found) return false;
  dq.copy_(found->q);
  dk.copy_(found->k);
  dv.copy_(found->v);
  return true;
}

}  // namespace cairn::kernels
