// CPU attention for few queries (decoding): keys and values are read once, in place, without packing.
#include <cmath>
#include <limits>

#include "kernels/attention/attention_problem.h"
#include "kernels/block_pattern.h"
#include "kernels/cpu/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {
namespace {

using namespace simd;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <int W>
CAIRN_INLINE float dot(const float* a, const float* b, int64_t n) {
  Float<W> sums = {};
  int64_t d = 0;
  for (; d + W <= n; d += W) sums += load<W>(a + d) * load<W>(b + d);
  float total = sum<W>(sums);
  for (; d < n; ++d) total += a[d] * b[d];
  return total;
}

template <int W>
CAIRN_INLINE void add_scaled(float* to, const float* from, float factor, int64_t n) {
  int64_t d = 0;
  for (; d + W <= n; d += W) store<W>(to + d, load<W>(to + d) + load<W>(from + d) * factor);
  for (; d < n; ++d) to[d] += from[d] * factor;
}

// Whether a pattern shows keys to one query, asked in the order of the keys: once for each block.
class ShownKeys {
 public:
  ShownKeys(const AttentionProblem& p, int64_t kv_head, int64_t query) : p_(p), kv_head_(kv_head), query_(query) {}
  bool operator()(int64_t key) {
    if (p_.pattern == nullptr) return true;
    if (key < end_) return shown_;
    const int64_t block = p_.pattern->block, column = (p_.key_offset + key) / block;
    end_ = (column + 1) * block - p_.key_offset;
    return shown_ = p_.pattern->sees(p_.first_kv_head + kv_head_, (p_.query_offset + query_) / block, column);
  }

 private:
  const AttentionProblem& p_;
  int64_t kv_head_, query_, end_ = 0;
  bool shown_ = true;
};

struct Decode {
  template <int W>
  static CAIRN_INLINE void run(const AttentionProblem* problem, int64_t batch, int64_t head, float* scores) {
    const AttentionProblem& p = *problem;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    for (int64_t i = 0; i < p.q_len; ++i) {
      const int64_t keys = p.keys_seen(i + 1), first = std::min(keys, p.first_key(i));
      float highest = -kInfinity;
      ShownKeys shown(p, kv_head, i);
      for (int64_t j = first; j < keys; ++j) {
        const bool same = p.key_documents == nullptr || p.key_documents[batch * p.k_len + j] == p.query_documents[batch * p.q_len + i];
        const bool seen = shown(j) && same;
        scores[j] = seen ? dot<W>(p.q.at(batch, i, head), p.k.at(batch, j, kv_head), p.head_dim) * (p.scale * kLog2e) : -kInfinity;
        highest = std::max(highest, scores[j]);
      }
      float* out = p.out.at(batch, i, head);
      std::fill(out, out + p.head_dim, 0.0f);
      float* lse = p.lse + (batch * p.heads + head) * p.q_len + i;
      *lse = -kInfinity;
      if (highest == -kInfinity) continue;
      float total = 0;
      for (int64_t j = first; j < keys; ++j) total += scores[j] = std::exp2(scores[j] - highest);
      for (int64_t j = first; j < keys; ++j)
        if (scores[j] > 0) add_scaled<W>(out, p.v.at(batch, j, kv_head), scores[j], p.head_dim);
      for (int64_t d = 0; d < p.head_dim; ++d) out[d] /= total;
      *lse = (highest + std::log2(total)) * kLn2;
    }
  }
};

}  // namespace

void attention_decode_task(const AttentionProblem& problem, int64_t batch, int64_t head, float* scores) {
  simd::run<Decode>(&problem, batch, head, scores);
}

}  // namespace cairn::kernels
