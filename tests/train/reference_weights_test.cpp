#include "train/steps/reference_weights.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/trainable.h"

namespace cairn::train {
namespace {

const model::DecoderShape kSmall{
    .vocab = 11, .embed = 8, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 10, .length = 6, .tied = true};

// Every parameter, and the neighbours that blocks read as one, by a Weights.
std::vector<at::Tensor> read_all(const model::Model& model, const model::Weights& weights) {
  std::vector<at::Tensor> all;
  for (int32_t i = 0; i < static_cast<int32_t>(model.parameters().size()); ++i) all.push_back(weights.get({i}).clone());
  for (const auto& block : model.blocks())
    for (const model::BlockOp& operation : block->card().operations)
      for (const mesh::ParamId& id : operation.parameters) all.push_back(weights.get(id).clone());
  return all;
}

void expect_kept(const std::vector<std::string>& patterns, const model::AdapterShape& lora, int64_t elements_copied) {
  const auto model = model::make_decoder(kSmall, lora);
  const parallel::ShardedWeights live({.layout = model->layout(),
                                       .units = parallel::make_shard_units(*model, model->layout(), {}),
                                       .placements = std::vector<mesh::Placement>(model->parameters().size()),
                                       .master = at::kFloat,
                                       .compute = at::kFloat});
  const model::FlatWeights start(model->layout(), at::empty({model->elements()}));
  model::initialize_parameters(*model, start.flat(), base::Random(2));
  const std::vector<bool> trained = model::trainable(*model, patterns);
  for (int32_t i = 0; i < static_cast<int32_t>(trained.size()); ++i) live.get({i}).copy_(start.get({i}));
  const ReferenceWeights reference(*model, live, trained);
  EXPECT_EQ(reference.bytes(), 4 * elements_copied);
  const std::vector<at::Tensor> before = read_all(*model, live);
  for (int32_t i = 0; i < static_cast<int32_t>(trained.size()); ++i)
    if (trained[static_cast<size_t>(i)]) live.get({i}).add_(1);
  const std::vector<at::Tensor> kept = read_all(*model, reference), now = read_all(*model, live);
  bool moved = false;
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(kept[i], before[i])) << i;
    moved = moved || !at::equal(now[i], before[i]);
  }
  EXPECT_TRUE(moved);
}

TEST(ReferenceWeights, KeepsTheWeightsAsTheyWereAndCopiesOnlyWhatIsTrained) {
  const auto whole = model::make_decoder(kSmall);
  expect_kept({}, {}, whole->elements());
  // Queries, keys and values of a layer are read as one matrix: trained in part, they are copied whole.
  expect_kept({"*.layers.1.self_attn.k_proj.*"}, {}, 8 * (8 + 4 + 4));
  expect_kept({"role:norm"}, {}, 5 * 8);
  expect_kept({}, {.rank = 2, .alpha = 4, .targets = {"q_proj", "down_proj"}}, 2 * 2 * ((8 + 8) + (10 + 8)));
}

}  // namespace
}  // namespace cairn::train
