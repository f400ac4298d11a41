// Table look-up on a GPU: exact, and gradients that are summed in fp32 in one order.
#include "kernels/embedding.h"
#include "kernels/on_gpu.h"

namespace cairn::kernels {
namespace {

// Ids that come once, ids that all are one, runs that end at the border of a slice, tables that lie askew.
struct GpuTableCase {
  int64_t count, vocab, embed, askew;
};
constexpr GpuTableCase kGpuTableCases[] = {{1, 1, 1, 0},     {127, 50257, 96, 0}, {1000, 7, 768, 0}, {64, 1, 64, 0},
                                           {65, 1, 64, 0},   {300, 2, 100, 0},    {517, 40, 257, 0}, {129, 3, 2048, 0},
                                           {90, 11, 768, 1}, {0, 5, 8, 0},        {2000, 300, 24, 0}};

std::string table_name(const GpuTableCase& c, at::ScalarType type) {
  return fmt::format("{} of {} x {} + {}, {}", c.count, c.vocab, c.embed, c.askew, c10::toString(type));
}

TEST(EmbeddingOnCuda, GivesTheRowsThemselves) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuTableCase& c : kGpuTableCases) {
      const at::Tensor table = askew(on_gpu(normal({c.vocab, c.embed}, 1, type)), c.askew),
                       ids = on_gpu(integers(0, c.vocab, {c.count}, 2));
      const at::Tensor y = poisoned({c.count, c.embed}, type);
      embedding(y, table, ids);
      EXPECT_TRUE(bitwise_equal(y, table.index_select(0, ids))) << table_name(c, type);
    }
}

TEST(EmbeddingOnCuda, AddsGradientsInOneOrder) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes)
    for (const GpuTableCase& c : kGpuTableCases) {
      const at::Tensor ids = on_gpu(integers(0, c.vocab, {c.count}, 2)), dy = on_gpu(normal({c.count, c.embed}, 3, type));
      const at::Tensor start = askew(on_gpu(normal({c.vocab, c.embed}, 4)), c.askew), dtable = askew(start, c.askew),
                       again = askew(start, c.askew);
      const at::Tensor exact = wide(start.cpu()), plain = start.clone();
      exact.index_add_(0, ids.cpu(), wide(dy.cpu()));
      reference::embedding_backward(plain, ids, dy);
      embedding_backward(dtable, ids, dy);
      expect_as_exact(dtable, plain, exact, table_name(c, type));
      const at::Tensor low = askew(start.to(at::kBFloat16), c.askew), low_exact = wide(low.cpu()),
                       low_plain = low.clone();  // each sum is rounded once
      low_exact.index_add_(0, ids.cpu(), wide(dy.cpu()));
      reference::embedding_backward(low_plain, ids, dy);
      embedding_backward(low, ids, dy);
      expect_as_exact(low, low_plain, low_exact, table_name(c, type) + " into bf16");
      embedding_backward(again, ids, dy);
      EXPECT_TRUE(bitwise_equal(again, dtable)) << table_name(c, type) << " a second time";
    }
}

TEST(EmbeddingOnCuda, AnIdOutsideShowsAndTouchesNothing) {
  CAIRN_NEEDS_GPU();
  const at::Tensor table = on_gpu(normal({5, 16}, 1)), ids = on_gpu(at::tensor({int64_t{4}, int64_t{5}, int64_t{-1}, int64_t{0}}));
  const at::Tensor y = on_gpu(at::zeros({4, 16})), dtable = on_gpu(at::zeros({5, 16})), dy = on_gpu(at::ones({4, 16}));
  embedding(y, table, ids);
  EXPECT_TRUE(at::equal(at::isnan(y).all(1).cpu(), at::tensor({0, 1, 1, 0}).to(at::kBool)));
  embedding_backward(dtable, ids, dy);
  EXPECT_TRUE(at::equal(dtable.sum(1).cpu(), at::tensor({16.0f, 0.0f, 0.0f, 0.0f, 16.0f})));
}

}  // namespace
}  // namespace cairn::kernels
