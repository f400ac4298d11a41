// Every row of the list of features that do not work together, as a recipe that uses both.
#include "train/features.h"

#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "small_decoder.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using Sets = std::vector<std::string>;

// How a recipe comes to use a feature: keys, ranks, and the key that a refusal must name.
struct Use {
  Feature feature;
  Sets sets;
  int ranks;
  const char* key;
};

Sets plan_of_a_step(const std::string& by) {
  return {"data.packing=sequences", "context.plan=" + by, "context.tokens_per_rank=64", "eval.fraction=0"};
}

const Use& use_of(Feature feature) {
  static const std::vector<Use> uses = {
      {Feature::bf16_parameters, {"train.precision=bf16", "train.parameters=bf16"}, 1, "train.parameters"},
      {Feature::bf16_gradients, {"train.precision=bf16", "train.gradients=bf16"}, 1, "train.gradients"},
      {Feature::loss_chunks, {"train.loss_chunks=2"}, 1, "train.loss_chunks"},
      {Feature::cuda_graph, {"train.cuda_graph=true"}, 1, "train.cuda_graph"},
      {Feature::frozen_cache, {"train.cache_frozen_bytes=1000000"}, 1, "train.cache_frozen_bytes"},
      {Feature::check_every, {"train.check_every=2"}, 1, "train.check_every"},
      {Feature::recovery, {"train.on_bad_step=skip"}, 1, "train.on_bad_step"},
      {Feature::rollback, {"train.on_bad_step=rollback"}, 1, "train.on_bad_step"},
      {Feature::sync_check, {"log.sync_check=true"}, 1, "log.sync_check"},
      {Feature::zero, {"memory.zero=1"}, 2, "memory.zero"},
      {Feature::tp, {"mesh.tp=2"}, 2, "mesh.tp"},
      {Feature::zero3, {"memory.zero=3"}, 2, "memory.zero"},
      {Feature::zero1_or_2, {"memory.zero=2"}, 2, "memory.zero"},
      {Feature::replicas, {"mesh.dp=2"}, 2, "mesh.dp"},
      {Feature::swapped_parameters, {"memory.parameters=disk"}, 1, "memory.parameters"},
      {Feature::swapped_gradients, {"memory.gradients=host"}, 1, "memory.gradients"},
      {Feature::swapped_optimizer, {"memory.optimizer=disk"}, 1, "memory.optimizer"},
      {Feature::background_saves, {"snapshot.mode=async"}, 1, "snapshot.mode"},
      {Feature::memory_snapshots, {"snapshot.memory.every=2"}, 1, "snapshot.memory.every"},
      {Feature::pp, {"mesh.pp=2"}, 2, "mesh.pp"},
      {Feature::cp, {"mesh.cp=2"}, 2, "mesh.cp"},
      {Feature::ep, {"mesh.ep=2"}, 2, "mesh.ep"},
      {Feature::step_plans, plan_of_a_step("flexsp"), 1, "context.plan"},
      {Feature::unequal_passes, plan_of_a_step("bytescale"), 1, "context.plan"},
      {Feature::local_steps, {"mesh.island=2", "sync.island.kind=diloco"}, 2, "sync.island.kind"},
      {Feature::several_ranks, {"mesh.dp=2"}, 2, "mesh.dp"},
      {Feature::fp8, {"train.precision=bf16", "train.fp8=all"}, 1, "train.fp8"},
      {Feature::tensor_overlap, {"mesh.tp=2", "tensor.overlap=true"}, 2, "tensor.overlap"},
      {Feature::stream, {"recompute.mode=stream"}, 1, "recompute.mode"},
      {Feature::stage_recompute, {"recompute.mode=stage"}, 1, "recompute.mode"},
      {Feature::dropout, {"model.dropout=0.1"}, 1, "model.dropout"},
      {Feature::spectral, {"model.spectral.rank=4"}, 1, "model.spectral.rank"},
      {Feature::remote_islands,
       {"island.count=2", "island.number=0", "island.meet=127.0.0.1:1", "sync.island.kind=diloco", "sync.island.every=200"},
       1,
       "island.count"},
      {Feature::sample_losses, {"data.sampler=seta", "train.epochs=2"}, 1, "data.sampler"},
      {Feature::whole_batch, {"data.kind=retrieval", "data.path=set", "data.sampler=tas", "sampler.clusters=set/c"}, 1, "data.sampler"},
  };
  for (const Use& one : uses)
    if (one.feature == feature) return one;
  throw std::logic_error("a feature in the list of conflicts has no recipe here: add one");
}

// No rule along dp decides on the host yet; adapters need a pretrained model, copies of experts one with experts, and answers a reference.
bool has_no_recipe(Feature feature) {
  constexpr Feature kWithout[] = {Feature::host_sync, Feature::dp_rule, Feature::adapters_behind, Feature::fssdp,
                                  Feature::reshard,   Feature::pairs,   Feature::rollouts};
  return std::ranges::find(kWithout, feature) != std::end(kWithout);
}

std::string refusal_by(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input) << error.what();
    return error.what();
  }
  return "";
}

std::string refusal_by_check(const Sets& sets, int ranks) {
  return refusal_by([&] { check_recipe(small_decoder("llama", sets), ranks); });
}

class ConflictingFeatures : public testing::TestWithParam<Conflict> {};

TEST_P(ConflictingFeatures, AreRefusedWithTheKeysOfBothAndTheReason) {
  if (has_no_recipe(GetParam().refused) || has_no_recipe(GetParam().with)) {
    const UsedFeature used[] = {{GetParam().refused, "this = 1"}, {GetParam().with, "that = 2"}};
    EXPECT_THAT(refusal_by([&] { refuse_conflicts(used); }),
                AllOf(StartsWith("this = 1: does not work with that = 2"), EndsWith(std::string(GetParam().why))));
    return;
  }
  const Use &refused = use_of(GetParam().refused), &with = use_of(GetParam().with);
  Sets both = refused.sets;
  both.insert(both.end(), with.sets.begin(), with.sets.end());
  const std::string message = refusal_by_check(both, std::max(refused.ranks, with.ranks));
  EXPECT_THAT(message, StartsWith(std::string(refused.key) + " = "));
  EXPECT_THAT(message, HasSubstr(std::string(": does not work with ") + with.key + " = "));
  EXPECT_THAT(message, EndsWith(std::string(GetParam().why)));
}

TEST_P(ConflictingFeatures, AreAcceptedAlone) {
  for (const Feature feature : {GetParam().refused, GetParam().with}) {
    if (has_no_recipe(feature)) continue;
    EXPECT_EQ(refusal_by_check(use_of(feature).sets, use_of(feature).ranks), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConflictingFeatures, testing::ValuesIn(conflicts().begin(), conflicts().end()));

}  // namespace
}  // namespace cairn::train
