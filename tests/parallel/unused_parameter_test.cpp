// A parameter that no block names is kept and updated like any other, on the ranks of the first stage.
#include <gtest/gtest.h>

#include "model/decoder/decoder.h"
#include "parallel/layout/model_shard.h"

namespace cairn::parallel {
namespace {

std::unique_ptr<model::Model> decoder_with_unused() {
  model::DecoderShape shape;
  shape.vocab = 11, shape.embed = 6, shape.layers = 2, shape.heads = 2, shape.kv_heads = 1, shape.head_dim = 3, shape.mlp = 5;
  shape.length = 7, shape.tied = false;
  auto model = model::make_decoder(shape);
  model->add(model::Parameter{.name = "unused.weight", .shape = {3, 5}});
  return model;
}

TEST(UnusedParameter, IsKeptByEveryReplica) {
  const auto model = decoder_with_unused();
  Plan plan;
  plan.mesh.axes = {{"dp", 3}};
  for (int rank = 0; rank < 3; ++rank) {
    const ModelShard shard = model_shard(*model, plan, rank);
    EXPECT_TRUE(shard.parameters.back().here);
    EXPECT_EQ(shard.parameters.back().copies, std::vector<int>{rank});
    EXPECT_EQ(shard.layout.elements, model->elements());
  }
}

TEST(UnusedParameter, StaysWithTheFirstStageAlone) {
  const auto model = decoder_with_unused();
  Plan plan;
  plan.mesh.axes = {{"pp", 2}};
  const auto blocks = static_cast<int64_t>(model->blocks().size());
  plan.stage_blocks = {blocks / 2, blocks - blocks / 2};
  plan.rank_of_stage = {1, 0};  // the first stage is on rank 1
  EXPECT_FALSE(model_shard(*model, plan, 0).parameters.back().here);
  const ModelShard first = model_shard(*model, plan, 1);
  EXPECT_TRUE(first.parameters.back().here);
  EXPECT_EQ(first.parameters.back().copies, std::vector<int>{1});
  EXPECT_EQ(model_shard(*model, plan, 0).layout.elements + first.layout.elements, model->elements());
}

}  // namespace
}  // namespace cairn::parallel
