// What a store's recipe is refused for: each would let a record reach an artifact that does not say so.
#include "unlearn/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "small_store.h"
#include "snapshot/pretrained.h"

namespace cairn::unlearn {
namespace {

using testing::HasSubstr;

class StoreRecipe : public testing::Test {
 protected:
  std::string refused(const std::vector<std::string>& sets) {
    const base::Recipe::File file = store_recipe(scratch_.file("records.jsonl", some_records(12)));
    return refusal_by([&] { read_unlearn(file, sets); });
  }
  harness::ScratchFolder scratch_;
};

TEST_F(StoreRecipe, IsAcceptedAndHasAbsolutePaths) {
  const UnlearnRecipe read = read_unlearn(store_recipe(scratch_.file("records.jsonl", some_records(12))), {"unlearning.shards=3"});
  EXPECT_EQ(read.options.shards, 3);
  EXPECT_EQ(read.layers, (std::vector<std::vector<int64_t>>{{3, 2}, {1, 0}}));
  EXPECT_THAT(read.options_toml, HasSubstr("shards = 3"));
  EXPECT_THAT(read.training_toml, testing::Not(HasSubstr("[unlearning]")));
  EXPECT_THAT(read.training_toml, HasSubstr("tokenizer_file = \"/"));
  base::Recipe again = base::Recipe::parse_saved({read.training_toml, "recipe.toml"});
  EXPECT_EQ(train::read_settings(again).adapter.rank, 2);
}

TEST_F(StoreRecipe, RefusesAdaptersThatStagesWouldShare) {
  EXPECT_THAT(refused({"model.adapter.kind=mos"}),
              HasSubstr("model.adapter.kind = mos: layers of all stages take pieces of the same pools, so no stage could be switched off"));
  EXPECT_THAT(refused({"model.adapter.kind=mos", "unlearning.method=sisa"}),
              HasSubstr("a store serves low-rank adapters of single layers"));
  EXPECT_THAT(refused({"model.adapter.rank=0"}), HasSubstr("model.adapter.rank = 0: stages train adapters"));
}

TEST_F(StoreRecipe, RefusesMoreSlicesThanLayers) {
  EXPECT_THAT(refused({"unlearning.slices=5"}), HasSubstr("unlearning.slices = 5: 4 layers cannot isolate 5 slices"));
  EXPECT_THAT(refused({"unlearning.slices=2", "unlearning.layers_per_stage=3"}), HasSubstr("2 slices would need 6 layers"));
  EXPECT_EQ(refused({"unlearning.slices=5", "unlearning.method=sisa"}), "accepted");
  EXPECT_THAT(refused({"unlearning.layers_per_stage=1", "unlearning.method=sisa"}), HasSubstr("every stage of sisa has all layers"));
}

TEST_F(StoreRecipe, RefusesWhatMixesRecordsOfSlices) {
  EXPECT_THAT(refused({"data.tokenizer=bpe", "data.tokenizer_file="}), HasSubstr("a tokenizer that is learned from the records"));
  EXPECT_THAT(refused({"data.subset=chosen.subset"}), HasSubstr("it was chosen by all records"));
  EXPECT_THAT(refused({"model.train=[\"*\"]"}), HasSubstr("model.train: each stage trains its own adapters"));
  EXPECT_THAT(refused({"mesh.island=2", "sync.island.kind=diloco"}), HasSubstr("mesh.island = 2: islands average"));
  EXPECT_THAT(refused({"train.method=one_byte"}), HasSubstr("train.method = one_byte: stages are trained by ordinary steps"));
  EXPECT_THAT(refused({"data.kind=preference"}), HasSubstr("data.kind = preference: records of text"));
  EXPECT_THAT(refused({"model.batch_norm=true"}), HasSubstr("model.batch_norm = true: running means depend on every record"));
}

TEST_F(StoreRecipe, RefusesAnswersThatCannotBePutTogether) {
  EXPECT_THAT(refused({"unlearning.aggregate=vote"}), HasSubstr("is for classes"));
  EXPECT_THAT(refused({"unlearning.prefix=best"}), HasSubstr("Set unlearning.validation"));
}

TEST_F(StoreRecipe, RefusesUnknownKeys) {
  EXPECT_THAT(refused({"unlearning.shard=3"}), HasSubstr("unlearning.shard"));
  EXPECT_THAT(refused({"train.epoch=3"}), HasSubstr("train.epoch"));
}

// By whole numbers: "layers.1" is no part of "layers.10".
TEST(AdaptersByLayer, TakeLayersByTheirWholeNumber) {
  model::DecoderShape shape{.vocab = 50, .embed = 8, .layers = 12, .heads = 2, .kv_heads = 2, .head_dim = 4, .mlp = 8};
  const auto found = adapters_by_layer(shape, {.rank = 2});
  ASSERT_EQ(found.size(), 12u);
  EXPECT_EQ(found.at(1),
            (std::vector<std::string>{"model.layers.1.self_attn.q_proj.lora_A.weight", "model.layers.1.self_attn.q_proj.lora_B.weight",
                                      "model.layers.1.self_attn.v_proj.lora_A.weight", "model.layers.1.self_attn.v_proj.lora_B.weight"}));
  for (const std::string& name : found.at(10)) EXPECT_THAT(name, testing::StartsWith("model.layers.10."));
}

}  // namespace
}  // namespace cairn::unlearn
