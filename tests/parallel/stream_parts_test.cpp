// Values of the residual stream in parts along tp: there and back, whatever the sizes.
#include "parallel/activations/stream_parts.h"

#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "parallel/activations/kept_input.h"

namespace cairn::parallel {
namespace {

std::unique_ptr<model::Model> decoder_of(const std::string& residual) {
  model::DecoderShape shape;
  shape.vocab = 11, shape.embed = 6, shape.layers = 2, shape.heads = 3, shape.kv_heads = 3, shape.head_dim = 2, shape.mlp = 9;
  shape.length = 5, shape.residual = residual;
  return model::make_decoder(shape);
}

TEST(StreamParts, AreAlreadyThereWhereTokensAreSharded) {
  harness::on_ranks(3, [](comm::World& world) {
    mesh::Axes axes;
    axes.put("tp", world.everyone());
    const StreamParts standard(*decoder_of("standard"), axes), ladder(*decoder_of("ladder"), axes);
    EXPECT_EQ(standard.form("hidden.0", true), StreamForm::same);
    EXPECT_EQ(standard.form("hidden.1", false), StreamForm::whole);
    EXPECT_EQ(ladder.form("hidden.0", true), StreamForm::part);
    EXPECT_EQ(ladder.form("hidden.1", false), StreamForm::same);
    EXPECT_EQ(ladder.form("layers.0.mlp.in", true), StreamForm::part);
    EXPECT_EQ(ladder.form("logits", true), StreamForm::same);  // not of the stream
    const StreamParts alone(*decoder_of("ladder"), {});
    EXPECT_EQ(alone.form("hidden.0", true), StreamForm::same);
    EXPECT_EQ(alone.form("hidden.0", false), StreamForm::same);
  });
}

TEST(StreamParts, ComeBackBitwiseIdentical) {
  harness::on_ranks(3, [](comm::World& world) {
    mesh::Axes axes;
    axes.put("tp", world.everyone());
    const StreamParts parts(*decoder_of("ladder"), axes);
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{2, 5, 6}, {1, 1, 1}, {1, 7, 5}}) {
      const int64_t n = c10::multiply_integers(shape);
      const at::Tensor value = at::arange(n, at::kFloat).view(shape).add_(0.5);
      const at::Tensor part = parts.to_form(value, StreamForm::part, 0, "x");
      EXPECT_EQ(part.numel(), parts.part_elements(n));
      EXPECT_LE(part.numel(), (n + 2) / 3);
      EXPECT_FALSE(part.is_alias_of(value));  // or the whole would stay in memory
      EXPECT_TRUE(at::equal(parts.from_form(part, StreamForm::part, shape, "x"), value));
    }
    const int64_t mine = world.rank() == 0 ? 3 : 2;  // of 7 tokens
    const at::Tensor local = at::full({1, mine, 6}, static_cast<float>(world.rank()));
    const at::Tensor whole = parts.to_form(local, StreamForm::whole, 7, "x");
    EXPECT_EQ(whole.sizes(), (at::IntArrayRef{1, 7, 6}));
    EXPECT_EQ(whole[0][6][5].item<float>(), 2);
    EXPECT_TRUE(at::equal(parts.from_form(whole, StreamForm::whole, {}, "x"), local));
  });
}

TEST(KeptInput, IsAPartOnTheHostAndWholeWhenTaken) {
  harness::on_ranks(2, [](comm::World& world) {
    mesh::Axes axes;
    axes.put("tp", world.everyone());
    const StreamParts parts(*decoder_of("ladder"), axes);
    const at::Tensor value = at::arange(30, at::kFloat).view({1, 5, 6});
    KeptInput kept(model::Value{.tensor = value.clone()});
    EXPECT_EQ(kept.device_bytes(), 120);
    kept.convert(parts, StreamForm::part, 5, "x");
    EXPECT_EQ(kept.device_bytes(), 60);
    kept.offload();
    kept.release_device();
    EXPECT_EQ(kept.device_bytes(), 0);
    EXPECT_TRUE(at::equal(kept.take(parts, "x").tensor, value));
  });
}

}  // namespace
}  // namespace cairn::parallel
