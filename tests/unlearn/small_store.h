// A small frozen model, trained once for all tests, and stores upon it.
#pragma once
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "train/train.h"
#include "unlearn/make_store.h"
#include "unlearn/train_stages.h"

namespace cairn::unlearn {

inline const std::filesystem::path& small_base() {
  static const harness::ScratchFolder scratch;
  static const std::filesystem::path folder = [] {
    base::Recipe recipe = base::Recipe::parse(R"(
      model = {layers = 4, embed = 16, heads = 2, kv_heads = 1, mlp = 24}
      data = {length = 64, stories_bytes = 4000, tokenizer = "bytes"}
      train = {steps = 2, global_batch = 3}
      log = {tensorboard = false, trace = false, samples = 0}
      eval = {every = 0}
    )",
                                              "base.toml");
    const base::Stop never;
    harness::on_ranks(1, [&](comm::World& world) {
      train::Start start;
      start.out = scratch / "base";
      train::run(world, recipe, start, {}, never);
    });
    return scratch / "base";
  }();
  return folder;
}

// So many records of two users in turn: record 3 says who wrote it.
inline std::string some_records(int64_t count, int64_t changed = -1) {
  std::string text;
  for (int64_t i = 0; i < count; ++i)
    text += fmt::format("{{\"text\": \"{} number {} went out\", \"user\": \"u{}\"}}\n", i == changed ? "nobody" : "somebody", i, i % 2);
  return text;
}

inline base::Recipe::File store_recipe(const std::filesystem::path& records,
                                       const std::string& unlearning = "shards = 2\nslices = 2\nbudget = 2", const std::string& more = "") {
  return {.text = fmt::format(R"(
[model]
from = "{}"
[model.adapter]
rank = 2
[data]
path = "{}"
length = 32
packing = "none"
[train]
epochs = 2
global_batch = 3
[optim]
learning_rate = 0.01
warmup_steps = 0
[unlearning]
{}
{})",
                              small_base().string(), records.string(), unlearning, more),
          .name = "store.toml"};
}

inline TrainedStages train_all(const Store& store, int ranks = 1) {
  TrainedStages done;
  const base::Stop never;
  harness::on_ranks(ranks, [&](comm::World& world) {
    base::Log quiet = base::Log::quiet();
    const TrainedStages found = train_missing_stages(world, store, {}, quiet, never);
    if (world.rank() == 0) done = found;
  });
  return done;
}

// A store of 12 records that is trained.
inline Store small_store(const std::filesystem::path& folder, const std::filesystem::path& records,
                         const std::string& unlearning = "shards = 2\nslices = 2\nbudget = 2", std::vector<int64_t> without = {}) {
  Store store = make_store(read_unlearn(store_recipe(records, unlearning), {}), folder, without);
  train_all(store);
  return store;
}

// Every file of an artifact, by name.
inline std::vector<std::pair<std::string, std::string>> files_of_artifact(const Store& store, const std::string& name) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const char* file : {"artifact.json", "adapter.safetensors"})
    files.emplace_back(file, base::read_file(store.artifact(name) / file, 1 << 24));
  return files;
}

inline std::string refusal_by(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace cairn::unlearn
