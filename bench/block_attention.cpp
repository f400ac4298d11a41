// Block-sparse attention (S2-Attention) against dense causal attention by our own CPU kernels, alternately: the fewer blocks a pattern shows,
// the less time.
#include <chrono>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/attention.h"
#include "kernels/block_pattern.h"
#include "study/benches.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3;

struct Case {
  int64_t length, heads, head_dim;
  kernels::BlockPattern pattern;
  double forward_goal = 0, both_goal = 0;  // times faster; 0: for information
};

at::Tensor random_tensor(const Case& c, const char* name) {
  const at::Tensor x = at::empty({1, c.length, c.heads, c.head_dim});
  base::Random(1).for_name(name).fill_normal({x.mutable_data_ptr<float>(), static_cast<size_t>(x.numel())});
  return x;
}

// Milliseconds of a forward and of a backward call.
struct Times {
  double forward = 0, backward = 0;
};

Times measure(const Case& c, const kernels::AttentionOptions& options) {
  static const base::RealClock clock;
  const at::Tensor q = random_tensor(c, "q"), k = random_tensor(c, "k"), v = random_tensor(c, "v"), dout = random_tensor(c, "dout");
  const at::Tensor out = at::empty_like(q), dq = at::empty_like(q), dk = at::empty_like(q), dv = at::empty_like(q);
  const at::Tensor lse = at::empty({1, c.heads, c.length});
  const auto milliseconds = [&](const auto& work) {
    const auto begin = clock.now();
    work();
    return std::chrono::duration<double, std::milli>(clock.now() - begin).count();
  };
  Times times;
  times.forward = milliseconds([&] { kernels::attention(out, lse, q, k, v, options); });
  times.backward = milliseconds([&] { kernels::attention_backward(dq, dk, dv, dout, q, k, v, out, lse, options); });
  return times;
}

}  // namespace

std::vector<BenchRow> bench_block_attention(const BenchOptions& options, base::Log& log) {
  std::vector<BenchRow> rows;
  for (const Case& c : {Case{8192, 8, 64, {.block = 64, .local_blocks = 4, .stride = 8, .kv_heads = 8}, 3.0, 2.5},
                        Case{8192, 8, 64, {.block = 64, .local_blocks = 8, .stride = 4, .kv_heads = 8}},
                        Case{8192, 8, 64, {.block = 64, .local_blocks = 8, .stride = 16, .kv_heads = 8}},
                        Case{8192, 8, 64, {.block = 16, .local_blocks = 16, .stride = 8, .kv_heads = 8}},
                        Case{4096, 4, 128, {.block = 64, .local_blocks = 4, .stride = 8, .kv_heads = 4}}}) {
    const std::string name = fmt::format("{} positions, heads {} x {}, block {}, window {}, stride {}", c.length, c.heads, c.head_dim,
                                         c.pattern.block, c.pattern.local_blocks, c.pattern.stride);
    if (!options.only.empty() && name != options.only) continue;
    log.info("{}", name);
    std::vector<double> sparse_forward, dense_forward, sparse_both, dense_both;
    measure(c, {.pattern = &c.pattern});  // memory is there, code is loaded
    for (int round = 0; round < kRounds; ++round) {
      const Times dense = measure(c, {}), sparse = measure(c, {.pattern = &c.pattern});
      dense_forward.push_back(dense.forward), sparse_forward.push_back(sparse.forward);
      dense_both.push_back(dense.forward + dense.backward), sparse_both.push_back(sparse.forward + sparse.backward);
    }
    rows.push_back(compare(name + ", forward", sparse_forward, dense_forward, "ms", Better::lower, c.forward_goal));
    rows.push_back(compare(name + ", forward and backward", sparse_both, dense_both, "ms", Better::lower, c.both_goal));
  }
  return rows;
}

}  // namespace cairn::study
