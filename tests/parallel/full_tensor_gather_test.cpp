#include "parallel/state/full_tensor_gather.h"

#include <gtest/gtest.h>

#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "parallel/layout/tensor_split.h"

namespace cairn::parallel {
namespace {

// Integers beyond 2^24, which fp32 cannot hold, from a layout with tp and ZeRO.
TEST(FullTensorGather, KeepsIntegersExact) {
  const auto model = model::make_decoder(
      {.vocab = 11, .embed = 8, .layers = 1, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 10, .length = 6, .tied = true});
  Plan plan;
  plan.mesh.axes = {{"shard", 2}, {"tp", 2}};
  plan.zero = 1;
  for (const model::Parameter& parameter : model->parameters()) plan.placements[parameter.name] = {{{"tp", tensor_split(parameter, 2)}}};
  harness::on_ranks(4, [&](comm::World& world) {
    const ParameterStore store({.world = world,
                                .model = *model,
                                .plan = plan,
                                .trained = std::vector<bool>(model->parameters().size(), true),
                                .master = at::kFloat,
                                .compute = at::kFloat});
    const FullTensorGather gather({.world = world, .model = *model, .plan = plan});
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      const model::Parameter& parameter = model->parameters()[i];
      const at::Tensor expected = at::arange(parameter.elements()).add_((int64_t{1} << 40) + 1).view(parameter.shape);
      at::Tensor mine;
      for (const ParameterSlice& slice : store.pieces())
        if (slice.parameter == i)
          mine = cut_out(expected, store.shard().parameters[i].local_shard)
                     .reshape({-1})
                     .narrow(0, slice.elements.begin, slice.elements.length());
      const at::Tensor found = gather.gather(i, mine, parameter.name, at::kLong);
      EXPECT_EQ(found.defined(), world.rank() == 0);
      if (found.defined()) {
        EXPECT_TRUE(at::equal(found, expected)) << parameter.name;
      }
    }
  });
}

}  // namespace
}  // namespace cairn::parallel
