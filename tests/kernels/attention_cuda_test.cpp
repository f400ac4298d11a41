// Attention on a GPU, by whichever library takes a case, is as exact as its plain form there.
#include "kernels/attention/attention_cuda.h"

#include <random>
#include <set>

#include "kernels/attention.h"
#include "kernels/attention/cudnn_varlen.h"
#include "kernels/on_gpu.h"

namespace cairn::kernels {
namespace {

struct GpuAttentionCase {
  const char* what;
  int64_t batch, q_len, k_len, heads, kv_heads, head_dim;
  AttentionOptions options = {};
};

std::vector<GpuAttentionCase> gpu_attention_cases() {
  return {{"causal", 2, 128, 128, 4, 4, 64},
          {"causal, odd length", 2, 127, 127, 12, 12, 64},
          {"causal, grouped", 1, 320, 320, 8, 2, 128},
          {"causal, another scale", 1, 65, 65, 4, 4, 64, {.scale = 0.3}},
          {"causal at equal offsets", 1, 96, 96, 4, 2, 64, {.query_offset = 50, .key_offset = 50}},
          {"all seen", 2, 100, 100, 6, 3, 96, {.causal = false}},
          {"all keys before the queries", 2, 64, 64, 4, 4, 64, {.query_offset = 64}},
          {"more keys than queries", 2, 16, 80, 8, 4, 64, {.query_offset = 64}},
          {"one query", 3, 1, 65, 8, 2, 128, {.query_offset = 64}},
          {"one query, one key", 1, 1, 1, 2, 1, 64},
          {"window", 2, 150, 150, 4, 2, 64, {.window = 33}},
          {"window beyond the keys", 1, 64, 64, 4, 4, 64, {.window = 64}},
          {"window, more keys", 1, 20, 90, 4, 4, 64, {.window = 17, .query_offset = 70}},
          {"wide heads", 1, 80, 80, 2, 2, 256},
          {"heads of 20", 1, 33, 33, 2, 2, 20},
          {"some queries see nothing", 1, 40, 24, 2, 2, 64, {.query_offset = 0, .key_offset = 16}},
          {"partly before", 1, 40, 40, 2, 2, 64, {.query_offset = 10}}};
}

struct AttentionResults {
  at::Tensor out, lse, dqkv;
};

using AttentionForward = void (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                  const AttentionOptions&);
using AttentionBackward = void (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                   const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const AttentionOptions&);

// Queries, keys and values as slices of one buffer, as a model has them; where lengths differ, rows of it are left alone.
AttentionResults run_attention(const GpuAttentionCase& c, const at::Tensor& qkv, const at::Tensor& dout, AttentionForward forward,
                               AttentionBackward backward) {
  const auto parts = [&](const at::Tensor& all) {
    return std::vector<at::Tensor>{all.narrow(1, 0, c.q_len).narrow(2, 0, c.heads),
                                   all.narrow(1, 0, c.k_len).narrow(2, c.heads, c.kv_heads),
                                   all.narrow(1, 0, c.k_len).narrow(2, c.heads + c.kv_heads, c.kv_heads)};
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<at::Tensor> from = parts(qkv);
  const auto sums = qkv.options().dtype(qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  AttentionResults results{at::full({c.batch, c.q_len, c.heads, c.head_dim}, nan, qkv.options()),
                           at::full({c.batch, c.heads, c.q_len}, nan, sums), at::zeros_like(qkv)};
  const std::vector<at::Tensor> into = parts(results.dqkv);
  for (const at::Tensor& part : into) part.fill_(nan);
  forward(results.out, results.lse, from[0], from[1], from[2], c.options);
  backward(into[0], into[1], into[2], dout, from[0], from[1], from[2], results.out, results.lse, c.options);
  return results;
}

TEST(AttentionOnCuda, IsAsExactAsPlainOperations) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
    for (GpuAttentionCase& c : gpu_attention_cases()) {
      const std::string what = fmt::format(" of {}, {}", c.what, c10::toString(type));
      const int64_t rows = std::max(c.q_len, c.k_len);
      const at::Tensor qkv = on_gpu(normal({c.batch, rows, c.heads + 2 * c.kv_heads, c.head_dim}, 1, type));
      const at::Tensor dout = on_gpu(normal({c.batch, c.q_len, c.heads, c.head_dim}, 2, type));
      const AttentionResults fast = run_attention(c, qkv, dout, attention, attention_backward);
      const AttentionResults plain = run_attention(c, qkv, dout, reference::attention, reference::attention_backward);
      const AttentionResults exact = run_attention(c, wide(qkv), wide(dout), reference::attention, reference::attention_backward);
      expect_as_exact(fast.out, plain.out, exact.out, "out" + what);
      expect_as_exact(fast.dqkv, plain.dqkv, exact.dqkv, "gradients" + what);
      const at::Tensor seen = at::isfinite(exact.lse);
      ASSERT_TRUE(at::equal(at::isfinite(fast.lse), seen)) << "lse" + what;
      expect_as_exact(fast.lse.masked_fill(~seen, 0), plain.lse.masked_fill(~seen, 0), exact.lse.masked_fill(~seen, 0), "lse" + what);
    }
}

// With document ids alone it falls back to plain operations; with document starts it is variable-length attention.
TEST(AttentionOnCuda, DocumentsDoNotSeeEachOther) {
  CAIRN_NEEDS_GPU();
  struct {
    int64_t window, heads, kv_heads, head_dim;
  } const cases[] = {{0, 4, 2, 64}, {7, 4, 4, 64}, {0, 6, 6, 128}, {0, 2, 1, 256}};
  const at::Tensor documents = on_gpu(at::stack(
      {at::cat({at::zeros({30}, at::kLong), at::ones({34}, at::kLong)}),
       at::cat({at::full({1}, 5, at::kLong), at::full({50}, 3, at::kLong), at::full({13}, -1, at::kLong)}), at::zeros({64}, at::kLong)}));
  const at::Tensor starts = on_gpu(at::tensor({0, 30, 64, 0, 1, 51, 0, 64, 64}, at::kInt).view({3, 3}));
  for (const auto& one : cases) {
    GpuAttentionCase c{"documents",  3,
                       64,           64,
                       one.heads,    one.kv_heads,
                       one.head_dim, {.window = one.window, .query_documents = &documents, .key_documents = &documents}};
    const at::Tensor qkv = on_gpu(normal({3, 64, c.heads + 2 * c.kv_heads, c.head_dim}, 1, at::kBFloat16)),
                     dout = on_gpu(normal({3, 64, c.heads, c.head_dim}, 2, at::kBFloat16));
    const AttentionResults plain = run_attention(c, qkv, dout, reference::attention, reference::attention_backward);
    const AttentionResults exact = run_attention(c, wide(qkv), wide(dout), reference::attention, reference::attention_backward);
    for (const at::Tensor* known : std::vector<const at::Tensor*>{nullptr, &starts}) {
      c.options.document_starts = known;
      EXPECT_EQ(attend_on_cuda(qkv.narrow(2, 0, c.heads), qkv.narrow(2, c.heads, c.kv_heads),
                               qkv.narrow(2, c.heads + c.kv_heads, c.kv_heads), c.options)
                    .has_value(),
                known != nullptr);
      const AttentionResults fast = run_attention(c, qkv, dout, attention, attention_backward);
      const std::string what = fmt::format(" {} document starts, heads of {}", known ? "by" : "without", c.head_dim);
      expect_as_exact(fast.out, plain.out, exact.out, "out" + what);
      expect_as_exact(fast.dqkv, plain.dqkv, exact.dqkv, "gradients" + what);
      expect_as_exact(fast.lse, plain.lse, exact.lse, "lse" + what);
    }
  }
}

// A copy with NaN behind it, of which nothing may be read.
at::Tensor with_nan_behind(const at::Tensor& x) {
  const at::Tensor room = poisoned({x.numel() + 300 * x.size(2) * x.size(3)}, x.scalar_type()), part = room.narrow(0, 0, x.numel());
  return part.view(x.sizes()).copy_(x);
}

// Many documents, some of one position, and other ones each time: plans are kept for the next power of two of them.
TEST(AttentionOnCuda, ManyDocumentsOfAnyLength) {
  CAIRN_NEEDS_GPU();
  struct {
    int64_t batch, length, heads, kv_heads, head_dim;
    bool causal;
    at::ScalarType type;
  } const cases[] = {{5, 200, 6, 2, 64, true, at::kBFloat16},
                     {3, 257, 4, 4, 128, true, at::kHalf},
                     {1, 640, 12, 12, 64, true, at::kBFloat16},
                     {2, 130, 4, 1, 96, false, at::kBFloat16},
                     {2, 96, 2, 2, 40, true, at::kBFloat16}};
  std::mt19937 random(7);
  for (const auto& one : cases)
    for (const int64_t most : {3, 40}) {
      std::vector<int64_t> ids;
      int64_t all = 0;
      std::vector<int32_t> starts(static_cast<size_t>(one.batch * most), static_cast<int32_t>(one.length));
      for (int64_t row = 0; row < one.batch; ++row) {
        std::set<int64_t> begins{0};
        const int64_t count = row == 0 ? most : 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(most));
        while (std::ssize(begins) < count) begins.insert(static_cast<int64_t>(random() % static_cast<uint32_t>(one.length)));
        std::copy(begins.begin(), begins.end(), starts.begin() + row * most);
        all += std::ssize(begins);
        for (int64_t i = 0, id = -1; i < one.length; ++i) ids.push_back(id += begins.count(i) > 0 ? 1 : 0);
      }
      const at::Tensor documents = on_gpu(at::tensor(ids).view({one.batch, one.length})),
                       table = on_gpu(at::tensor(starts, at::kInt).view({one.batch, most}));
      const GpuAttentionCase c{"many documents",
                               one.batch,
                               one.length,
                               one.length,
                               one.heads,
                               one.kv_heads,
                               one.head_dim,
                               {.causal = one.causal,
                                .query_documents = &documents,
                                .key_documents = &documents,
                                .document_starts = &table,
                                .documents_max = all}};
      const at::Tensor qkv = with_nan_behind(on_gpu(normal({c.batch, c.q_len, c.heads + 2 * c.kv_heads, c.head_dim}, 1, one.type))),
                       dout = with_nan_behind(on_gpu(normal({c.batch, c.q_len, c.heads, c.head_dim}, 2, one.type)));
      const AttentionResults fast = run_attention(c, qkv, dout, attention, attention_backward);
      const AttentionResults plain = run_attention(c, qkv, dout, reference::attention, reference::attention_backward);
      const AttentionResults exact = run_attention(c, wide(qkv), wide(dout), reference::attention, reference::attention_backward);
      const std::string what = fmt::format(" of {} rows of up to {} documents, {} heads of {}", c.batch, most, c.heads, c.head_dim);
      expect_as_exact(fast.out, plain.out, exact.out, "out" + what);
      expect_as_exact(fast.dqkv, plain.dqkv, exact.dqkv, "gradients" + what);
      expect_as_exact(fast.lse, plain.lse, exact.lse, "lse" + what);
    }
}

// Else FlashAttention-2 would take them, and only a clock could tell.
TEST(AttentionOnCuda, CudnnTakesDocuments) {
  CAIRN_NEEDS_GPU();
  if (!has_cudnn_varlen()) GTEST_SKIP() << "built without cuDNN's headers";
  struct {
    const char* what;
    int64_t kv_heads, head_dim;
    bool causal = true;
    at::ScalarType type = at::kBFloat16;
    int64_t askew = 0, gap = 0;  // elements before the first, positions between rows
    bool taken = true;
  } const cases[] = {{"heads of 64", 4, 64},
                     {"grouped", 2, 64},
                     {"heads of 128, fp16", 2, 128, true, at::kHalf},
                     {"all seen, heads of 96", 1, 96, false},
                     {.what = "heads of 40", .kv_heads = 4, .head_dim = 40, .taken = false},
                     {.what = "an address that is not aligned", .kv_heads = 4, .head_dim = 64, .askew = 4, .taken = false},
                     {.what = "rows apart", .kv_heads = 4, .head_dim = 64, .gap = 1, .taken = false}};
  for (const auto& c : cases) {
    const at::Tensor all = askew(on_gpu(normal({2, 96 + c.gap, 4 + 2 * c.kv_heads, c.head_dim}, 1, c.type)), c.askew),
                     qkv = all.narrow(1, 0, 96), dout = on_gpu(normal({2, 96, 4, c.head_dim}, 2, c.type)),
                     starts = on_gpu(at::tensor({0, 30, 96, 0, 1, 51}, at::kInt).view({2, 3}));
    const VarlenAttention sequences{.q = qkv.narrow(2, 0, 4),
                                    .k = qkv.narrow(2, 4, c.kv_heads),
                                    .v = qkv.narrow(2, 4 + c.kv_heads, c.kv_heads),
                                    .starts = starts,
                                    .sequences_max = starts.numel(),
                                    .causal = c.causal};
    const std::optional<AttentionOutput> found = cudnn_varlen(sequences);
    EXPECT_EQ(found.has_value(), c.taken) << c.what;
    EXPECT_EQ(found && cudnn_varlen_backward(sequences, dout, *found), c.taken) << c.what;
  }
}

// Where each row is one document, as whole rows: the bits of attention without documents.
TEST(AttentionOnCuda, OneDocumentARowIsARow) {
  CAIRN_NEEDS_GPU();
  const at::Tensor documents = on_gpu(at::arange(0, 3, at::kLong).unsqueeze(1).expand({3, 64}).contiguous());
  const at::Tensor starts = on_gpu(at::zeros({3, 1}, at::kInt));
  GpuAttentionCase c{"one document a row", 3, 64, 64, 4, 2, 64};
  const at::Tensor qkv = on_gpu(normal({3, 64, 8, 64}, 1, at::kBFloat16)), dout = on_gpu(normal({3, 64, 4, 64}, 2, at::kBFloat16));
  const AttentionResults expected = run_attention(c, qkv, dout, attention, attention_backward);
  c.options = {.query_documents = &documents, .key_documents = &documents, .document_starts = &starts};
  const AttentionResults found = run_attention(c, qkv, dout, attention, attention_backward);
  EXPECT_TRUE(bitwise_equal(found.out, expected.out));
  EXPECT_LT(relative_error(found.dqkv, expected.dqkv), 1e-2);  // its sums are in any order
}

// The same q, k and v with a gradient that lies otherwise: a plan that was kept for the first must not be used wrongly for the second.
TEST(AttentionOnCuda, TakesAGradientOfAnyStrides) {
  CAIRN_NEEDS_GPU();
  const GpuAttentionCase c{"strides", 2, 128, 128, 4, 4, 64};
  const at::Tensor qkv = on_gpu(normal({2, 128, 12, 64}, 1, at::kBFloat16)), dout = on_gpu(normal({2, 128, 4, 64}, 2, at::kBFloat16));
  const AttentionResults one = run_attention(c, qkv, dout, attention, attention_backward);
  const AttentionResults other = run_attention(c, qkv, dout.transpose(1, 2).contiguous().transpose(1, 2), attention, attention_backward);
  EXPECT_LT(relative_error(other.dqkv, one.dqkv), 1e-2);
}

}  // namespace
}  // namespace cairn::kernels
