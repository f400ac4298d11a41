// Products together with what comes after them are those parts in a row.
#include "kernels/fused_gemm.h"

#include "kernels/closeness.h"
#include "kernels/gemm.h"
#include "kernels/swiglu.h"

namespace cairn::kernels {
namespace {

TEST(FusedGemm, SwigluIsTheProductAndThenSwiglu) {
  const int64_t rows = 7, in = 12, ff = 10;
  const at::Tensor x = normal({rows, in}, 1), w = normal({2 * ff, in}, 2), gate_up = at::empty({rows, 2 * ff}), y = at::empty({rows, ff});
  linear_swiglu(gate_up, y, x, w);
  const at::Tensor plain = at::matmul(wide(x), wide(w).t());
  expect_close(gate_up, plain, 16, "gate_up");
  expect_close(y, at::silu(plain.narrow(1, 0, ff)) * plain.narrow(1, ff, ff), 32, "y");
}

TEST(FusedGemm, SwigluBackwardIsTheInputGradientAndThenSwiglus) {
  const int64_t rows = 7, out = 12, ff = 10;
  const at::Tensor gate_up = normal({rows, 2 * ff}, 1), w = normal({out, ff}, 2), dout = normal({rows, out}, 3);
  const at::Tensor x = leaf(gate_up), active = at::silu(x.narrow(1, 0, ff)) * x.narrow(1, ff, ff);
  const at::Tensor expected = gradients(at::matmul(active, wide(w).t()), dout, {x})[0];
  const at::Tensor dgate_up = at::empty_like(gate_up), y = at::empty({rows, ff}), in_place = gate_up.clone();
  linear_swiglu_backward(dgate_up, y, dout, w, gate_up);
  expect_close(dgate_up, expected, 64, "dgate_up");
  expect_close(y, active.detach(), 16, "y");
  linear_swiglu_backward(in_place, y, dout, w, in_place);
  EXPECT_TRUE(at::equal(in_place, dgate_up));
}

TEST(FusedGemm, RopeRotatesTheFirstHeadsByThePositionsOfTheirRows) {
  const int64_t batch = 3, length = 5, in = 12, heads = 3, head_dim = 8, rotated = 2, position = 4;
  const at::Tensor x = normal({batch * length, in}, 1), w = normal({heads * head_dim, in}, 2),
                   y = at::empty({batch * length, heads * head_dim});
  const RopeTable table = rope_table(position + length, head_dim, 10000, at::kFloat);
  linear_rope(y, x, w, {.table = table, .heads = rotated, .length = length, .position = position});
  const at::Tensor plain = at::matmul(x, w.t()).view({batch, length, heads, head_dim});
  reference::rope(plain.narrow(2, 0, rotated), table, position);
  expect_close(y, wide(plain.view_as(y)), 64, "y");
}

}  // namespace
}  // namespace cairn::kernels
