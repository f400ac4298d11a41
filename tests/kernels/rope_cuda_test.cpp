// Rotary embedding on a GPU is as exact as its plain form there, on heads that lie in a fused buffer.
#include "kernels/on_gpu.h"
#include "kernels/rope.h"

namespace cairn::kernels {
namespace {

// Of `all` heads in the buffer, those from `first` are rotated.
struct GpuRopeCase {
  int64_t batch, length, all, first, heads, head_dim;
};
constexpr GpuRopeCase kGpuRopeCases[] = {{1, 1, 1, 0, 1, 2},      {2, 127, 12, 0, 8, 64}, {3, 5, 3, 1, 2, 128},
                                         {2, 33, 60, 5, 40, 128}, {1, 9, 4, 1, 2, 6},     {2, 3, 3, 1, 1, 100},
                                         {4, 7, 3, 0, 2, 16},     {1, 70, 2, 0, 1, 1024}, {2, 0, 3, 0, 2, 64}};

TEST(RopeOnCuda, IsAsExactAsPlainOperations) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuRopeCase& c : kGpuRopeCases)
      for (const bool inverse : {false, true}) {
        const std::string what = fmt::format("{} x {} x {} x {}, {}", c.batch, c.length, c.heads, c.head_dim, c10::toString(type));
        const at::Tensor buffer = on_gpu(normal({c.batch, c.length, c.all, c.head_dim}, 1, type)), before = buffer.clone();
        const RopeTable host = rope_table(c.length + 3, c.head_dim, 1e4, at::kFloat), table{on_gpu(host.cos), on_gpu(host.sin)};
        const RopeTable exact_table = rope_table(c.length + 3, c.head_dim, 1e4, at::kDouble);
        const at::Tensor plain = before.clone(), exact = wide(before.cpu());
        rope(buffer.narrow(2, c.first, c.heads), table, 3, inverse);
        reference::rope(plain.narrow(2, c.first, c.heads), table, 3, inverse);
        reference::rope(exact.narrow(2, c.first, c.heads), exact_table, 3, inverse);
        expect_as_exact(buffer, plain, exact, what);
        for (int64_t head = 0; head < c.all; ++head)
          if (head < c.first || head >= c.first + c.heads) {
            EXPECT_TRUE(bitwise_equal(buffer.select(2, head), before.select(2, head))) << what << ": head " << head << " was not meant";
          }
      }
}

TEST(RopeOnCuda, TurnsOneTensorIntoAnother) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const int64_t head_dim : {6, 64, 128}) {
      const RopeTable host = rope_table(40, head_dim, 1e4, at::kFloat), table{on_gpu(host.cos), on_gpu(host.sin)};
      const at::Tensor fused = on_gpu(normal({2, 33, 5, head_dim}, 1, type)), others = fused.narrow(2, 3, 2).clone();
      const at::Tensor from = on_gpu(normal({2, 3, 33, head_dim}, 2, type)).transpose(1, 2), expected = from.contiguous().clone();
      rope(expected, table, 4, true);
      rope(fused.narrow(2, 0, 3), table, 4, true, &from);
      EXPECT_TRUE(bitwise_equal(fused.narrow(2, 0, 3).contiguous(), expected));
      EXPECT_TRUE(bitwise_equal(fused.narrow(2, 3, 2).contiguous(), others));
    }
}

TEST(RopeOnCuda, GradientsOfAFusedQkvBufferAreRotatedBack) {
  CAIRN_NEEDS_GPU();
  struct {
    int64_t batch, length, q, k, head_dim;
  } const cases[] = {{1, 1, 1, 1, 2}, {2, 37, 12, 12, 64}, {3, 50, 32, 8, 128}, {2, 9, 3, 1, 20}};
  for (const at::ScalarType type : kKernelTypes)
    for (const auto& c : cases) {
      const RopeTable table = rope_table(3 + c.length, c.head_dim, 10000, at::kFloat), there{table.cos.cuda(), table.sin.cuda()};
      const at::Tensor dq = on_gpu(normal({c.batch, c.q, c.length, c.head_dim}, 1, type)).transpose(1, 2),
                       dk = on_gpu(normal({c.batch, c.length, c.k, c.head_dim}, 2, type)),
                       dv = on_gpu(normal({c.batch, c.length, c.k, c.head_dim}, 3, type)),
                       x = poisoned({c.batch, c.length, c.q + 2 * c.k, c.head_dim}, type);
      rope_backward(x, {dq, dk, dv}, there, 3);
      const at::Tensor back_q = dq.clone(), back_k = dk.clone();
      rope(back_q, there, 3, /*inverse=*/true);
      rope(back_k, there, 3, /*inverse=*/true);
      EXPECT_TRUE(at::equal(x, at::cat({back_q, back_k, dv}, 2))) << c.length << " positions, heads of " << c.head_dim;
    }
}

}  // namespace
}  // namespace cairn::kernels
