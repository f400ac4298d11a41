// Memory tiers: state on the device, in host memory or on disk gives the same run.
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/metrics.h"
#include "harness/disk_folder.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "refusal.h"
#include "small_decoder.h"
#include "train/dry_run.h"
#include "train/layout_trace.h"
#include "train_on.h"

namespace cairn::train {
namespace {

using ::testing::HasSubstr;

struct OffloadCase {
  std::string name;
  int ranks;
  std::vector<std::string> sets;
  std::string family = "llama";
};

LayoutTrace traced(const OffloadCase& c, const std::vector<std::string>& tiers, const std::filesystem::path& disk) {
  base::Recipe recipe = small_decoder(c.family, c.sets);
  for (const std::string& set : tiers) recipe.set(set);
  recipe.set("memory.disk_path", disk.string(), "test");
  LayoutTrace recording;
  for (const std::exception_ptr& error : comm::LocalNetwork(c.ranks).run([&](comm::World& world) {
         LayoutTrace own = trace_layout(world, recipe, {.steps = 3, .tensors = true, .plant = "", .cache = {}});
         if (world.rank() == 0) recording = std::move(own);
       }))
    if (error) std::rethrow_exception(error);
  return recording;
}

std::vector<std::string> tiers(const std::string& parameters, const std::string& gradients, const std::string& optimizer) {
  return {"memory.parameters=" + parameters, "memory.gradients=" + gradients, "memory.optimizer=" + optimizer};
}

class Offload : public testing::TestWithParam<OffloadCase> {};

TEST_P(Offload, OptimizerStateElsewhereChangesNoBit) {
  const harness::DiskFolder disk;
  const LayoutTrace plain = traced(GetParam(), {}, disk.path());
  for (const char* tier : {"host", "disk"}) {
    const LayoutTrace found = traced(GetParam(), {std::string("memory.optimizer=") + tier, "memory.group_elements=3000"}, disk.path());
    const Difference apart = first_difference(found, plain, 1e-13);  // the norm is summed unit by unit
    EXPECT_EQ(apart.step, 0) << tier << ": " << apart.what << " by " << apart.largest << " of " << apart.scale;
  }
  EXPECT_TRUE(disk.names().empty());
}

INSTANTIATE_TEST_SUITE_P(
    Every, Offload,
    testing::Values(OffloadCase{"one", 1, {}}, OffloadCase{"dp2", 2, {}}, OffloadCase{"zero1", 3, {"memory.zero=1"}},
                    OffloadCase{"zero2", 3, {"memory.zero=2", "train.micro_batch=1"}}, OffloadCase{"zero3", 4, {"memory.zero=3"}},
                    OffloadCase{"hybrid_tp", 8, {"mesh.dp=4", "mesh.shard=2", "mesh.tp=2"}},
                    OffloadCase{"pp2_tp2", 4, {"mesh.pp=2", "mesh.tp=2"}}, OffloadCase{"muon", 2, {"optim.kind=muon", "memory.zero=3"}},
                    OffloadCase{"adafactor", 2, {"optim.kind=adafactor", "mesh.tp=2"}}, OffloadCase{"sgd", 1, {"optim.kind=sgd"}},
                    OffloadCase{"bf16", 2, {"train.precision=bf16", "train.parameters=bf16", "memory.zero=1"}}),
    [](const auto& c) { return c.param.name; });

class OffloadAll : public testing::TestWithParam<OffloadCase> {};

TEST_P(OffloadAll, MixturesOfTiersAreBitwiseIdentical) {
  const harness::DiskFolder disk;
  const LayoutTrace plain = traced(GetParam(), {}, disk.path());
  std::vector<LayoutTrace> found;
  for (const auto& mix : {tiers("disk", "disk", "disk"), tiers("host", "disk", "device"), tiers("disk", "device", "host"),
                          tiers("disk", "host", "disk"), tiers("host", "host", "host")}) {
    found.push_back(traced(GetParam(), mix, disk.path()));
    Difference apart = first_difference(found.back(), plain, 1e-6);
    EXPECT_EQ(apart.step, 0) << mix[0] << mix[1] << mix[2] << ": " << apart.what << " by " << apart.largest << " of " << apart.scale;
    // One rank accumulates gradients on the device inside its products, and those of a tier pass by pass.
    const bool in_products = GetParam().name == "one_accumulates" && mix[1] == "memory.gradients=device";
    apart = first_difference(found.back(), found.front(), in_products ? 1e-6 : 0);
    EXPECT_EQ(apart.step, 0) << mix[0] << mix[1] << mix[2] << ": " << apart.what << " by " << apart.largest << " of " << apart.scale;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Every, OffloadAll,
    testing::Values(OffloadCase{"one", 1, {}}, OffloadCase{"one_accumulates", 1, {"train.micro_batch=2"}},
                    OffloadCase{"zero3_of_3", 3, {"memory.zero=3"}},
                    OffloadCase{"zero3_of_4_accumulates", 4, {"memory.zero=3", "train.micro_batch=1", "memory.accumulate_unsharded=false"}},
                    OffloadCase{"zero3_recompute", 2, {"memory.zero=3", "recompute.mode=full"}},
                    OffloadCase{"zero3_tp2", 4, {"memory.zero=3", "mesh.tp=2"}},
                    OffloadCase{"zero3_cp2", 4, {"memory.zero=3", "mesh.cp=2"}},
                    OffloadCase{"owner", 3, {"memory.zero=3", "memory.partition=owner"}},
                    OffloadCase{"no_read_ahead", 2, {"memory.zero=3", "memory.read_ahead=0", "memory.prefetch_blocks=0"}},
                    OffloadCase{"gpt2_tied", 2, {"memory.zero=3", "model.tied=true"}, "gpt2"},
                    OffloadCase{"some_trained", 2, {"memory.zero=3", R"(model.train=["*q_proj*", "*norm*", "*layers.1.mlp*"])"}},
                    OffloadCase{"bf16", 2, {"memory.zero=3", "train.precision=bf16"}},
                    OffloadCase{"bf16_parameters", 2, {"memory.zero=3", "train.precision=bf16", "train.parameters=bf16"}},
                    OffloadCase{"muon", 2, {"memory.zero=3", "optim.kind=muon"}}),
    [](const auto& c) { return c.param.name; });

// Pipelines: parameters and optimizer state; gradients stay.
TEST(OffloadInAPipeline, GivesTheSameSteps) {
  const harness::DiskFolder disk;
  for (const OffloadCase& c :
       std::vector<OffloadCase>{{"pp3", 3, {"mesh.pp=3"}}, {"zbv_zero3", 4, {"mesh.pp=2", "memory.zero=3", "pipeline.schedule=zbv"}}}) {
    const LayoutTrace plain = traced(c, {}, disk.path());
    const Difference apart = first_difference(traced(c, tiers("disk", "device", "disk"), disk.path()), plain, 1e-6);
    EXPECT_EQ(apart.step, 0) << c.name << ": " << apart.what << " by " << apart.largest << " of " << apart.scale;
  }
}

std::vector<double> losses_of(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl")) losses.push_back(row.number("loss"));
  return losses;
}

// Snapshots move between runs with and without tiers.
TEST(OffloadSnapshots, MoveBetweenRunsWithAndWithoutTiers) {
  const harness::DiskFolder disk;
  const harness::ScratchFolder scratch;
  const auto recipe = [&](int64_t steps, const std::vector<std::string>& sets) {
    base::Recipe one =
        small_decoder("llama", {"memory.zero=3", "snapshot.every=2", "snapshot.keep=9", "optim.warmup_steps=1", "optim.schedule=constant"});
    for (const std::string& set : sets) one.set(set);
    one.set("train.steps", steps, "test");
    one.set("memory.disk_path", disk.path().string(), "test");
    return one;
  };
  const std::vector<std::string> away = tiers("disk", "disk", "disk");
  train_on(2, recipe(4, {}), scratch / "plain");
  const std::vector<double> expected = losses_of(scratch / "plain");
  ASSERT_EQ(expected.size(), 4u);
  struct Leg {
    std::string name;
    std::vector<std::string> first, second;
    int ranks_first, ranks_second;
  };
  for (const Leg& leg :
       std::vector<Leg>{{"out", {}, away, 2, 2}, {"in", away, {}, 2, 2}, {"both", away, away, 2, 3}, {"one", away, away, 3, 1}}) {
    const std::filesystem::path run = scratch / leg.name;
    train_on(leg.ranks_first, recipe(2, leg.first), run);
    train_on(leg.ranks_second, recipe(4, leg.second), run, /*resume=*/true);
    const std::vector<double> found = losses_of(run);
    ASSERT_EQ(found.size(), 4u) << leg.name;
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 2e-6 * expected[i]) << leg.name << " step " << i + 1;
  }
  EXPECT_TRUE(disk.names().empty());
}

TEST(OffloadMetrics, TellStallsHitsAndBytes) {
  const harness::DiskFolder disk;
  const harness::ScratchFolder scratch;
  base::Recipe recipe = small_decoder("llama", tiers("disk", "device", "disk"));
  recipe.set("train.steps", int64_t{3}, "test");
  recipe.set("memory.disk_path", disk.path().string(), "test");
  train_on(1, recipe, scratch / "run");
  const std::vector<base::MetricsRow> rows = base::read_metrics(scratch / "run" / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_GT(rows[2].number("memory_hits"), 0);
  EXPECT_GT(rows[2].number("memory_read_bytes"), 0);
  EXPECT_GT(rows[2].number("memory_written_bytes"), 0);
  EXPECT_GT(rows[2].number("memory_disk_bytes"), 0);
}

// What a killed run left is removed by the next one with its run directory; files of other runs stay.
TEST(OffloadSwapFiles, AreRemovedByTheirOwnRun) {
  const harness::DiskFolder disk;
  const harness::ScratchFolder scratch;
  base::Recipe recipe = small_decoder("llama", {"memory.optimizer=disk"});
  recipe.set("train.steps", int64_t{1}, "test");
  recipe.set("memory.disk_path", disk.path().string(), "test");
  const std::string own = fmt::format("{:016x}", base::checksum(std::filesystem::weakly_canonical(scratch / "run").string()));
  for (const std::string& id : {own + "-0", own + "-7", std::string("0123456789abcdef-0")})
    std::ofstream(disk.path() / ("cairn-swap-" + id + ".data")) << "left";
  train_on(1, recipe, scratch / "run");
  EXPECT_THAT(disk.names(), testing::ElementsAre("cairn-swap-0123456789abcdef-0.data"));
}

TEST(OffloadDryRun, PrintsBytesByTierAndRank) {
  base::Recipe recipe = small_decoder("llama", tiers("disk", "host", "disk"));
  recipe.set("memory.zero=3");
  const std::string text = dry_run(recipe, {.out = {}, .cache = {}, .terminal = nullptr}, 3, {.bytes = int64_t{1} << 34, .ranks = 3}).text;
  for (const char* part : {"tiers, by rank\n", "  2                      device ", "host ", "disk ", "TB written a day", "host tier"})
    EXPECT_THAT(text, HasSubstr(part));
  recipe.set("memory.device_budget=1KiB");
  try {
    dry_run(recipe, {.out = {}, .cache = {}, .terminal = nullptr}, 3, {});
    FAIL() << "it does not fit";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("memory.device_budget = 1.00 KiB: the device ("));
  }
}

std::string offload_refusal(const std::vector<std::string>& sets, const std::filesystem::path& disk = "", int ranks = 1) {
  base::Recipe recipe = small_decoder("llama", sets);
  if (!disk.empty()) recipe.set("memory.disk_path", disk.string(), "test");
  return refusal_of(recipe, ranks);
}

TEST(OffloadRefusals, GiveNumbersAndARemedy) {
  const harness::DiskFolder disk;
  EXPECT_THAT(offload_refusal({"memory.optimizer=disk"}), HasSubstr("lie on disk, and no folder is given"));
  EXPECT_THAT(offload_refusal({"memory.optimizer=disk", "memory.host_budget=8KiB"}, disk.path()),
              HasSubstr("memory.host_budget = 8.00 KiB: the largest unit that lies on disk (model.embed_tokens.weight"));
  EXPECT_THAT(offload_refusal({"memory.device_budget=100KiB"}, disk.path()), HasSubstr("memory.device_budget = 100 KiB: the device ("));
  EXPECT_THAT(offload_refusal({"memory.optimizer=disk", "memory.disk_budget=64KiB"}, disk.path()),
              HasSubstr("memory.disk_budget = 64.0 KiB: what lies on disk needs"));
  EXPECT_THAT(offload_refusal({"memory.optimizer=disk", "memory.disk_budget=900TiB"}, disk.path()), HasSubstr("free"));
  EXPECT_THAT(offload_refusal({"memory.optimizer=disk", "memory.disk_read_mib_s=0.01", "memory.disk_write_mib_s=0.01"}, disk.path()),
              HasSubstr("needs"));
  EXPECT_THAT(offload_refusal({"memory.host_budget=much"}), HasSubstr("memory.host_budget = \"much\": is no number of bytes."));
  EXPECT_THAT(offload_refusal({"memory.parameters=disk", "memory.zero=2"}, disk.path(), 2),
              HasSubstr("memory.parameters = disk: does not work with memory.zero = 2"));
  EXPECT_THAT(offload_refusal({"memory.gradients=host"}, disk.path(), 2),
              HasSubstr("memory.gradients = host: does not work with mesh.dp = 2"));
  EXPECT_THAT(offload_refusal({"memory.optimizer=host", "snapshot.mode=async"}), HasSubstr("memory.optimizer = host: does not work with"));
  EXPECT_THAT(offload_refusal({"memory.optimizer=host", "train.cuda_graph=true"}), HasSubstr("cuda_graph"));
  EXPECT_THAT(offload_refusal({"memory.optimizer=host", "train.method=one_byte"}), HasSubstr("memory.optimizer = host"));
  EXPECT_TRUE(disk.names().empty());
  if (!std::filesystem::exists("/dev/shm")) return;
  EXPECT_THAT(offload_refusal({"memory.optimizer=disk"}, "/dev/shm"), HasSubstr("is on a tmpfs"));
}

}  // namespace
}  // namespace cairn::train
