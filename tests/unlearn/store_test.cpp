// A store on disk: what it refuses.
#include "unlearn/store.h"

#include <cmath>

#include <ATen/core/IListRef.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "small_store.h"
#include "unlearn/artifact.h"
#include "unlearn/records.h"
#include "unlearn/tombstones.h"

namespace cairn::unlearn {
namespace {

using testing::HasSubstr;

StoreSpec tiny_spec() {
  StoreSpec spec;
  spec.shards = 1, spec.slices = 2, spec.records = 4;
  spec.orders = {{{0, 1}, {1, 0}}};
  spec.layers = {{1}, {0}};
  spec.base = "base", spec.base_checksum = 0xab, spec.digest = "x";
  return spec;
}

TEST(UnlearnStore, IsReadBackAsItWasMade) {
  const harness::ScratchFolder scratch;
  const Store made = Store::make(scratch / "store", tiny_spec(), "a = 1\n", "b = 2\n");
  const Store read(scratch / "store");
  EXPECT_EQ(read.spec(), tiny_spec());
  EXPECT_EQ(read.recipe(), "a = 1\n");
  EXPECT_EQ(read.options(), "b = 2\n");
  EXPECT_TRUE(is_store(scratch / "store"));
  EXPECT_FALSE(is_store(scratch.path()));
}

TEST(UnlearnStore, RefusesDamage) {
  const harness::ScratchFolder scratch;
  Store::make(scratch / "store", tiny_spec(), "", "");
  const std::string text = scratch.text_of("store/store.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    scratch.file("store/store.json", changed);
    return refusal_by([&] { Store open(scratch / "store"); });
  };
  EXPECT_THAT(with("store 1", "store 9"), HasSubstr("this Cairn reads"));
  EXPECT_THAT(with("\"s3t\"", "\"s4t\""), HasSubstr("\"method\" is \"s4t\""));
  EXPECT_THAT(with("\"records\": 4", "\"records\": 1"), HasSubstr("fewer records than slices"));
  EXPECT_THAT(with("\"records\": 4", "\"records\": -4"), HasSubstr("\"records\" must be"));
  EXPECT_THAT(with("\"shards\": 1", "\"shards\": 2"), HasSubstr("orders of other shards"));
  EXPECT_THAT(with("\"base\"", "\"bass\""), HasSubstr("\"base\" is missing"));
  EXPECT_THAT(with("{", "["), HasSubstr("store.json"));
}

TEST(UnlearnStore, ADeletedRecordThatItDoesNotHaveIsDamage) {
  const harness::ScratchFolder scratch;
  const Store store = Store::make(scratch / "store", tiny_spec(), "", "");
  append_tombstones(store.tombstones(), std::vector<int64_t>{9});
  EXPECT_THAT(refusal_by([&] { store.deleted(); }), HasSubstr("record 9: the store has 4"));
}

TEST(UnlearnStore, ArtifactsAreWrittenOnceAndReadBack) {
  const harness::ScratchFolder scratch;
  const Store store = Store::make(scratch / "store", tiny_spec(), "", "");
  Artifact made{.name = {.shard = 0, .slices = {1, 0}, .excluded = 2}, .parent = "s0-1-w1", .parent_checksum = 7, .base_checksum = 0xab};
  made.shape = {.rank = 2, .alpha = 8, .by_root = true}, made.seed = 5, made.records = 3, made.loss = 1.25;
  const mesh::NamedTensors tensors{{"model.layers.0.x.lora_A.weight", at::full({2, 3}, 1.5)},
                                   {"model.layers.0.x.lora_B.weight", at::full({4, 2}, 2.0)}};
  EXPECT_TRUE(write_artifact(store, made, tensors, base::real_disk()));
  EXPECT_FALSE(write_artifact(store, made, tensors, base::real_disk()));
  const Artifact read = read_artifact(store, "s0-1.0-w2");
  EXPECT_EQ(read.name, made.name);
  EXPECT_EQ(read.parent, "s0-1-w1");
  EXPECT_EQ(read.parent_checksum, 7u);
  EXPECT_TRUE(read.shape.by_root);
  EXPECT_DOUBLE_EQ(read.loss, 1.25);
  EXPECT_TRUE(std::isnan(read.validation));
  EXPECT_TRUE(at::equal(read_adapter_tensors(store, read)[0].tensor, tensors[0].tensor));
  EXPECT_TRUE(std::filesystem::is_empty(store.work()));

  made.name = {.shard = 0, .slices = {1}}, made.parent = "", made.base_checksum = 0xac;
  write_artifact(store, made, tensors, base::real_disk());
  EXPECT_THAT(refusal_by([&] { read_artifacts(store); }), HasSubstr("trained on another base model"));
}

TEST(UnlearnStore, ADamagedSliceFileIsRefused) {
  const harness::ScratchFolder scratch;
  const auto records = scratch.file("records.jsonl", some_records(12));
  const Store store = make_store(read_unlearn(store_recipe(records), {}), scratch / "store");
  std::string text = base::read_file(store.slice_file({0, 1}), 1 << 20);
  text[10] ^= 1;
  base::write_atomically(store.slice_file({0, 1}), text);
  EXPECT_THAT(refusal_by([&] { read_slice(store, {0, 1}, {}); }), HasSubstr("the checksum differs"));
  EXPECT_EQ(read_slice(store, {0, 0}, {}).size(), 3u);
}

}  // namespace
}  // namespace cairn::unlearn
