#include "kernels/rope.h"

#include <cmath>

#include <ATen/core/IListRef.h>

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

// Hugging Face's form: x * cos + rotate_half(x) * sin with the angles written twice.
at::Tensor plain_rope(const at::Tensor& x, double theta, int64_t position) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor frequencies = at::pow(theta, at::arange(half, at::kDouble) * (-1.0 / half));
  const at::Tensor angles = at::outer(at::arange(x.size(1), at::kDouble) + position, frequencies).repeat({1, 2}).unsqueeze(1);
  const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return x * at::cos(angles) + turned * at::sin(angles);
}

TEST(Rope, MatchesTheRotateHalfForm) {
  for (int64_t head_dim : {2, 6, 16, 64, 80, 128})
    for (int64_t position : {0, 5}) {
      const at::Tensor x = normal({2, 13, 3, head_dim}, 1), expected = plain_rope(wide(x), 10000, position);
      rope(x, rope_table(18, head_dim, 10000, at::kFloat), position);
      expect_close(x, expected, 4, "rotated");
    }
}

TEST(Rope, InverseTurnsBackAndIsTheGradient) {
  const at::Tensor x = leaf(normal({1, 7, 2, 10}, 1)), dy = normal({1, 7, 2, 10}, 2);
  const at::Tensor expected = gradients(plain_rope(x, 500, 0), dy, {x})[0], dx = dy.clone();
  rope(dx, rope_table(7, 10, 500, at::kFloat), 0, /*inverse=*/true);
  expect_close(dx, expected, 4, "dx");
  rope(dx, rope_table(7, 10, 500, at::kFloat));
  expect_close(dx, dy, 8, "there and back");
}

TEST(Rope, TurnsASliceOfAFusedBufferAndNothingElse) {
  const at::Tensor fused = normal({2, 5, 9 * 8}, 1), before = fused.clone();
  const at::Tensor keys = fused.narrow(2, 4 * 8, 3 * 8).view({2, 5, 3, 8});
  const at::Tensor expected = plain_rope(wide(keys), 10000, 0);
  with_threads([&] {
    fused.copy_(before);
    rope(keys, rope_table(5, 8, 10000, at::kFloat));
    expect_close(keys, expected, 4, "keys");
    EXPECT_TRUE(at::equal(fused.narrow(2, 0, 32), before.narrow(2, 0, 32)));
    EXPECT_TRUE(at::equal(fused.narrow(2, 56, 16), before.narrow(2, 56, 16)));
  });
}

TEST(Rope, ReferenceInDoubleIsExact) {
  const at::Tensor x = normal({2, 4, 1, 6}, 1, at::kDouble), expected = plain_rope(x, 10000, 3);
  rope(x, rope_table(8, 6, 10000, at::kDouble), 3);
  expect_close(x, expected, 8, "rotated");
}

TEST(Rope, RefusesPositionsBeyondItsTable) {
  const std::string error = error_of([] { rope(at::empty({1, 5, 1, 4}), rope_table(8, 4, 10000, at::kFloat), 4); });
  EXPECT_NE(error.find("positions 4 to 9 in a table of 8"), std::string::npos) << error;
}

TEST(Rope, MayTurnOneTensorIntoAnother) {
  const RopeTable table = rope_table(20, 6, 10000, at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor fused = normal({2, 7, 5, 6}, 1, type), from = normal({2, 3, 7, 6}, 2, type).transpose(1, 2), before = from.clone();
    const at::Tensor others = fused.narrow(2, 3, 2).clone(), expected = from.contiguous().clone();
    rope(expected, table, 4, true);
    rope(fused.narrow(2, 0, 3), table, 4, true, &from);
    EXPECT_TRUE(at::equal(fused.narrow(2, 0, 3), expected));
    EXPECT_TRUE(at::equal(fused.narrow(2, 3, 2), others));
    EXPECT_TRUE(at::equal(from, before));
  }
}

TEST(Rope, GradientsOfAFusedQkvBufferAreRotatedBack) {
  const int64_t batch = 2, length = 5, q = 4, k = 2, head_dim = 8, position = 3;
  const RopeTable table = rope_table(position + length, head_dim, 10000, at::kFloat);
  const at::Tensor dq = normal({batch, q, length, head_dim}, 1).transpose(1, 2), dk = normal({batch, length, k, head_dim}, 2),
                   dv = normal({batch, length, k, head_dim}, 3), x = at::full({batch, length, q + 2 * k, head_dim}, std::nan(""));
  rope_backward(x, {dq, dk, dv}, table, position);
  const at::Tensor back_q = dq.clone(), back_k = dk.clone();
  rope(back_q, table, position, /*inverse=*/true);
  rope(back_k, table, position, /*inverse=*/true);
  EXPECT_TRUE(at::equal(x, at::cat({back_q, back_k, dv}, 2)));
}

}  // namespace
}  // namespace cairn::kernels
