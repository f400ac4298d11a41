// Runs that train a pruned model: under its masks, on every layout, and over a restart.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "harness/scratch_folder.h"
#include "model/bit_mask.h"
#include "snapshot/masks.h"
#include "train/small_decoder.h"
#include "train/train_on.h"
#include "train/tuning.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A model of which half the weights of the blocks are gone, at random.
std::string make_pruned_model(const fs::path& folder, uint64_t seed = 1) {
  train_on(1, small_decoder("llama", {"train.steps=1", "eval.every=0", "model.tied=false"}), folder / "dense");
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained dense = snapshot::open_pretrained((folder / "dense").string(), quiet);
  const auto decoder = model::make_decoder(dense.shape);
  const at::Tensor flat = at::empty({decoder->elements()});
  const mesh::NamedTensors views = decoder->layout().views(flat);
  dense.load_into(views);
  mesh::NamedTensors masks;
  for (size_t i = 0; i < views.size(); ++i) {
    if (!decoder->parameters()[i].is_hidden_matrix()) continue;
    at::Tensor draws = at::empty(views[i].tensor.sizes());
    base::Random(seed).for_name(views[i].name).fill_uniform({draws.mutable_data_ptr<float>(), static_cast<size_t>(draws.numel())});
    const at::Tensor kept = draws.lt(0.5);
    views[i].tensor.masked_fill_(kept.logical_not(), 0);
    masks.push_back({views[i].name + model::kMaskSuffix, model::pack_mask(kept)});
  }
  const fs::path out = folder / "pruned";
  snapshot::write_pretrained(out.string(), dense.shape, views, dense.texts, {}, base::real_disk());
  snapshot::write_masks(out.string(), masks, base::real_disk());
  return out.string();
}

base::Recipe sparse_recipe(const std::string& from, const Sets& sets) {
  return small_decoder("llama", Sets{"model.from=" + from, "train.steps=4", "optim.learning_rate=0.01", "snapshot.every=2"} + sets);
}

// The merged model of a run, and how many of its pruned weights are not 0.
struct Merged {
  std::map<std::string, at::Tensor> tensors;
  int64_t filled = 0, zeros = 0;
};
Merged merged_of(const fs::path& run) {
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained opened = snapshot::open_pretrained(run.string(), quiet);
  const auto decoder = model::make_decoder(opened.shape);
  Merged merged;
  const mesh::NamedTensors views = decoder->layout().views(at::empty({decoder->elements()}));
  opened.load_into(views);
  for (const mesh::NamedTensor& one : views) merged.tensors[one.name] = one.tensor;
  for (const mesh::NamedTensor& mask : opened.masks) {
    const at::Tensor weight = merged.tensors.at(mask.name.substr(0, mask.name.rfind('.')));
    const at::Tensor gone = weight.masked_select(model::unpack_mask(mask.tensor, weight.size(1)).logical_not());
    merged.zeros += gone.numel();
    merged.filled += gone.ne(0).sum().item<int64_t>();
  }
  return merged;
}

class SparseForms : public testing::TestWithParam<std::string> {};

TEST_P(SparseForms, TrainAlikeOnEveryLayoutAndKeepTheirZeros) {
  const harness::ScratchFolder folder;
  const std::string from = make_pruned_model(folder.path());
  const Sets form{"model.sparse.form=" + GetParam(), "model.sparse.rank=3"};
  const std::vector<double> alone = losses_on(1, sparse_recipe(from, form), folder.path() / "alone");
  for (const auto& [name, ranks, sets] : std::vector<std::tuple<std::string, int, Sets>>{{"tp", 2, {"mesh.tp=2"}},
                                                                                         {"zero3", 2, {"mesh.dp=2", "memory.zero=3"}},
                                                                                         {"pp", 2, {"mesh.pp=2", "train.micro_batch=7"}},
                                                                                         {"recompute", 1, {"recompute.mode=full"}}}) {
    const std::vector<double> losses = losses_on(ranks, sparse_recipe(from, form + sets), folder.path() / name);
    ASSERT_EQ(losses.size(), alone.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], alone[i], 2e-5 * alone[i]) << name << ", step " << i;
    const Merged merged = merged_of(folder.path() / name);
    EXPECT_GT(merged.zeros, 0);
    EXPECT_EQ(merged.filled, 0) << name;
  }
  const Merged before = merged_of(from), after = merged_of(folder.path() / "alone");
  const std::string weight = "model.layers.0.mlp.up_proj.weight";
  EXPECT_FALSE(at::equal(before.tensors.at(weight), after.tensors.at(weight)));
}

TEST_P(SparseForms, GoOnAfterARestartBitwise) {
  const harness::ScratchFolder folder;
  const std::string from = make_pruned_model(folder.path());
  const Sets form{"model.sparse.form=" + GetParam(), "model.sparse.rank=3"};
  train_on(1, sparse_recipe(from, form), folder.path() / "whole");
  train_on(1, sparse_recipe(from, form + Sets{"train.steps=2", "optim.schedule=constant", "optim.warmup_steps=0"}), folder.path() / "two");
  train_on(1, sparse_recipe(from, form + Sets{"optim.schedule=constant", "optim.warmup_steps=0"}), folder.path() / "four");
  train_on(1, sparse_recipe(from, form + Sets{"optim.schedule=constant", "optim.warmup_steps=0"}), folder.path() / "two", /*resume=*/true);
  const Merged straight = merged_of(folder.path() / "four"), resumed = merged_of(folder.path() / "two");
  for (const auto& [name, tensor] : straight.tensors) EXPECT_TRUE(at::equal(tensor, resumed.tensors.at(name))) << name;
}

INSTANTIATE_TEST_SUITE_P(All, SparseForms, testing::Values("masked", "mask_lora", "scale_lora"));

TEST(PrunedModel, OrdinaryAdaptersAreMaskedWhenTheyAreMerged) {
  const harness::ScratchFolder folder;
  const std::string from = make_pruned_model(folder.path());
  const Sets lora{"model.lora.rank=2", R"(model.lora.targets=["q_proj", "down_proj", "lm_head"])"};
  train_on(1, sparse_recipe(from, lora), folder.path() / "kept");
  train_on(1, sparse_recipe(from, lora + Sets{"model.sparse.keep_zeros=false"}), folder.path() / "filled");
  EXPECT_EQ(merged_of(folder.path() / "kept").filled, 0);
  EXPECT_GT(merged_of(folder.path() / "filled").filled, 0);
}

TEST(PrunedModel, WithoutFormsTheMasksAreDropped) {
  const harness::ScratchFolder folder;
  const std::string from = make_pruned_model(folder.path());
  train_on(1, sparse_recipe(from, {"model.sparse.form=dense"}), folder.path() / "dense-again");
  base::Log quiet = base::Log::quiet();
  EXPECT_TRUE(snapshot::open_pretrained((folder.path() / "dense-again").string(), quiet).masks.empty());
}

std::string refusal_on(const base::Recipe& recipe, const fs::path& out, bool resume = false) {
  try {
    train_on(1, recipe, out, resume);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PrunedModel, RefusesOtherMasksThanThoseItBeganWith) {
  const harness::ScratchFolder folder;
  base::make_folder(folder.path() / "a"), base::make_folder(folder.path() / "b");
  const std::string first = make_pruned_model(folder.path() / "a"), second = make_pruned_model(folder.path() / "b", 2);
  train_on(1, sparse_recipe(first, {"train.steps=2"}), folder.path() / "run");
  EXPECT_THAT(refusal_on(sparse_recipe(second, {}), folder.path() / "run", /*resume=*/true),
              HasSubstr("its masks are not those of model.from"));
}

TEST(PrunedModel, RefusesFormsWhereThereAreNoMasks) {
  const harness::ScratchFolder folder;
  make_pruned_model(folder.path());
  EXPECT_THAT(refusal_on(sparse_recipe((folder.path() / "dense").string(), {"model.sparse.form=mask_lora"}), folder.path() / "run"),
              HasSubstr("has no masks. Prune it first"));
}

TEST(PrunedModel, RefusesASecondFormOfItsWeights) {
  const harness::ScratchFolder folder;
  const std::string from = make_pruned_model(folder.path());
  EXPECT_THAT(refusal_on(sparse_recipe(from, {"model.spectral.rank=2"}), folder.path() / "run"),
              HasSubstr("model.spectral: does not work with model.sparse: a weight has one form"));
}

TEST(PrunedModel, RefusesMasksThatDoNotFit) {
  const harness::ScratchFolder folder;
  const std::string from = make_pruned_model(folder.path());
  const std::string weight = "model.layers.0.self_attn.q_proj.weight";
  const auto refused = [&](const mesh::NamedTensors& masks) {
    snapshot::write_masks(from, masks, base::real_disk());
    return refusal_on(sparse_recipe(from, {}), folder.path() / "run");
  };
  EXPECT_THAT(refused({{"model.norm.weight.mask", at::zeros({1, 3}, at::kByte)}}), HasSubstr("the model has no such weight"));
  EXPECT_THAT(refused({{weight + ".mask", at::zeros({24, 4}, at::kByte)}}), HasSubstr("the mask of a weight [24, 24] is U8 [24, 3]"));
  EXPECT_THAT(refused({{weight, at::zeros({24, 3}, at::kByte)}}), HasSubstr("its name must end with .mask"));
}

}  // namespace
}  // namespace cairn::train
