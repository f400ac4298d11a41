// Stages through the trainer: isolation, exactness, and what repair gives.
#include "unlearn/stage.h"

#include <set>

#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "small_store.h"
#include "unlearn/delete_records.h"
#include "unlearn/live.h"
#include "unlearn/records.h"

namespace cairn::unlearn {
namespace {

using testing::HasSubstr;

std::set<std::string> names_of_tensors(const mesh::NamedTensors& tensors) {
  std::set<std::string> names;
  for (const mesh::NamedTensor& one : tensors) names.insert(one.name);
  return names;
}

// The served adapter of each shard, bitwise.
std::vector<std::vector<std::pair<std::string, std::string>>> served_files(const Store& store) {
  std::vector<std::vector<std::pair<std::string, std::string>>> all;
  const Served served = served_by(store);
  for (int64_t shard = 0; shard < store.spec().shards; ++shard)
    for (const Artifact& one : served.chain(shard)) all.push_back(files_of_artifact(store, to_text(one.name)));
  return all;
}

TEST(Stages, EachHasTheLayersOfItsPlaceAndNoOther) {
  const harness::ScratchFolder scratch;
  const Store store = small_store(scratch / "store", scratch.file("records.jsonl", some_records(12)));
  EXPECT_EQ(store.artifact_names(), (std::vector<std::string>{"s0-0", "s0-0.1", "s0-1", "s0-1.0", "s1-0", "s1-0.1", "s1-1", "s1-1.0"}));
  for (const std::string& name : names_of_tensors(read_adapter_tensors(store, read_artifact(store, "s0-0"))))
    EXPECT_TRUE(name.starts_with("model.layers.3.") || name.starts_with("model.layers.2.")) << name;
  const mesh::NamedTensors second = read_adapter_tensors(store, read_artifact(store, "s0-0.1"));
  EXPECT_EQ(second.size(), 8u);  // two layers, two projections, two matrices
  for (const std::string& name : names_of_tensors(second))
    EXPECT_TRUE(name.starts_with("model.layers.1.") || name.starts_with("model.layers.0.")) << name;
  for (const mesh::NamedTensor& one : second) EXPECT_GT(one.tensor.abs().max().item<float>(), 0) << one.name;  // b begins with zeros
  EXPECT_EQ(read_artifact(store, "s0-0.1").records, 6);
  EXPECT_EQ(read_artifact(store, "s0-0").records, 3);
  EXPECT_FALSE(std::filesystem::exists(store.work()) && !std::filesystem::is_empty(store.work()));  // no copy of a record stays
}

TEST(Stages, AStageDependsOnItsSlicesAlone) {
  const harness::ScratchFolder scratch;
  const Store one = small_store(scratch / "one", scratch.file("one.jsonl", some_records(12)));
  const int64_t record = 5;
  const Place place = one.spec().partition().place_of(record);
  const Store other = small_store(scratch / "other", scratch.file("other.jsonl", some_records(12, record)));
  for (const std::string& name : one.artifact_names()) {
    const bool depends = parse_artifact_name(name)->depends_on(place.shard, place.slice);
    EXPECT_EQ(files_of_artifact(one, name) == files_of_artifact(other, name), !depends) << name;
  }
}

// The heart: what is served after a deletion, and after a repair, is what a store has that never had the record.
TEST(Stages, AfterADeletionEverythingServedIsThatOfAStoreWithoutTheRecord) {
  const harness::ScratchFolder scratch;
  const auto records = scratch.file("records.jsonl", some_records(13));
  for (const std::string method : {"s3t", "sisa"}) {
    const std::string keys = fmt::format("method = \"{}\"\nshards = 2\nslices = 2\nbudget = 2", method);
    const Store store = small_store(scratch / ("with-" + method), records, keys);
    const Store without = small_store(scratch / ("without-" + method), records, keys, {7});
    EXPECT_NE(served_files(store), served_files(without));
    delete_records(store, std::vector<int64_t>{7});
    const Served served = served_by(store);
    int64_t compared = 0;
    for (int64_t shard = 0; shard < 2; ++shard)
      for (const Artifact& one : served.chain(shard)) {
        EXPECT_EQ(files_of_artifact(store, to_text(one.name)), files_of_artifact(without, to_text(one.name)));
        ++compared;
      }
    EXPECT_GT(compared, 1);
    EXPECT_GT(train_all(store).stages, 0);
    EXPECT_EQ(store.artifact_names(), without.artifact_names());
    EXPECT_EQ(served_files(store), served_files(without));
  }
}

TEST(Stages, AnInterruptedTrainingGoesOnWithTheStagesThatAreMissing) {
  const harness::ScratchFolder scratch;
  const auto records = scratch.file("records.jsonl", some_records(12));
  const Store whole = small_store(scratch / "whole", records);
  const Store store = small_store(scratch / "store", records);
  std::filesystem::remove_all(store.artifact("s0-0.1"));
  std::filesystem::remove_all(store.artifact("s1-1"));  // and so its successor is not live
  EXPECT_EQ(train_all(store).stages, 2);                // that successor is there already, and fits
  EXPECT_EQ(served_files(store), served_files(whole));
  EXPECT_EQ(train_all(store).stages, 0);
}

TEST(Stages, OnTwoRanksTheyAreNearlyTheSame) {
  const harness::ScratchFolder scratch;
  const auto records = scratch.file("records.jsonl", some_records(12));
  const Store one = small_store(scratch / "one", records);
  const Store two = make_store(read_unlearn(store_recipe(records), {"mesh.dp=2"}), scratch / "two");
  train_all(two, 2);
  ASSERT_EQ(one.artifact_names(), two.artifact_names());
  for (const std::string& name : one.artifact_names()) {
    const mesh::NamedTensors a = read_adapter_tensors(one, read_artifact(one, name)),
                             b = read_adapter_tensors(two, read_artifact(two, name));
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i].tensor, b[i].tensor, 1e-3, 1e-4)) << name << " " << a[i].name;
  }
}

TEST(Stages, TheCacheOfLayersBelowChangesNoBit) {
  const harness::ScratchFolder scratch;
  const auto records = scratch.file("records.jsonl", some_records(12));
  const Store with = small_store(scratch / "with", records);
  const Store without = small_store(scratch / "without", records, "shards = 2\nslices = 2\nbudget = 2\ncache_bytes = 0");
  for (const std::string& name : with.artifact_names()) EXPECT_EQ(files_of_artifact(with, name), files_of_artifact(without, name)) << name;
}

TEST(Stages, MeasureTheLossOnAFileThatStays) {
  const harness::ScratchFolder scratch;
  scratch.file("stays.txt", "somebody number 5 went out and came back");
  const Store store = small_store(scratch / "store", scratch.file("records.jsonl", some_records(12)),
                                  fmt::format("shards = 2\nslices = 2\nbudget = 2\nvalidation = \"{}\"", (scratch / "stays.txt").string()));
  for (const auto& [name, artifact] : read_artifacts(store)) EXPECT_TRUE(artifact.validation > 0 && artifact.validation < 20) << name;
}

TEST(Stages, SlicesAloneReadFewerRecords) {
  const harness::ScratchFolder scratch;
  const Store store = small_store(scratch / "store", scratch.file("records.jsonl", some_records(12)),
                                  "shards = 2\nslices = 2\nbudget = 2\ndata = \"slice\"");
  EXPECT_EQ(read_artifact(store, "s0-0.1").records, 3);
}

TEST(MakeStore, RefusesTooFewRecordsAndAnotherFolder) {
  const harness::ScratchFolder scratch;
  const UnlearnRecipe recipe = read_unlearn(store_recipe(scratch.file("records.jsonl", some_records(3))), {});
  EXPECT_THAT(refusal_by([&] { make_store(recipe, scratch / "store"); }),
              HasSubstr("the data have 3 records, and each of 4 slices needs one"));
  EXPECT_THAT(refusal_by([&] { make_store(recipe, scratch.path()); }), HasSubstr("there is something already (records.jsonl)"));
  EXPECT_THAT(refusal_by([&] { Store open(scratch / "nowhere"); }), HasSubstr("no store of cairn unlearn"));
}

TEST(MakeStore, AnotherRecipeForTheSameStoreIsRefusedByTheKeyThatDiffers) {
  const harness::ScratchFolder scratch;
  const base::Recipe::File file = store_recipe(scratch.file("records.jsonl", some_records(12)));
  const Store store = make_store(read_unlearn(file, {}), scratch / "store");
  EXPECT_EQ(refusal_by([&] { check_same_recipe(store, read_unlearn(file, {})); }), "accepted");
  EXPECT_THAT(refusal_by([&] { check_same_recipe(store, read_unlearn(file, {"unlearning.partition_seed=3"})); }),
              HasSubstr("unlearning.partition_seed = 3: "));
  EXPECT_THAT(refusal_by([&] { check_same_recipe(store, read_unlearn(file, {"optim.learning_rate=0.5"})); }),
              HasSubstr("optim.learning_rate = 0.5: "));
}

TEST(MakeStore, WritesNothingOfRecordsThatAreLeftOut) {
  const harness::ScratchFolder scratch;
  const UnlearnRecipe recipe = read_unlearn(store_recipe(scratch.file("records.jsonl", some_records(12))), {});
  const Store store = make_store(recipe, scratch / "store", std::vector<int64_t>{4, 9});
  EXPECT_EQ(store.deleted(), (std::vector<int64_t>{4, 9}));
  EXPECT_EQ(find_records(store, "user", "u0"), (std::vector<int64_t>{0, 2, 6, 8, 10}));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store.folder()))
    if (entry.is_regular_file()) {
      EXPECT_EQ(base::read_file(entry.path(), 1 << 24).find("somebody number 4 "), std::string::npos) << entry.path();
    }
  EXPECT_THAT(refusal_by([&] { make_store(recipe, scratch / "other", std::vector<int64_t>{12}); }),
              HasSubstr("--without 12: the data have records 0 to 11"));
}

}  // namespace
}  // namespace cairn::unlearn
