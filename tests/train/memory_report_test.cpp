#include "train/report/memory_report.h"

#include <map>

#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "base/memory_scope.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "train/train.h"

namespace cairn::train {
namespace {

int64_t bytes_for(const MemoryReport::Most& most, const std::string& purpose) {
  for (const MemoryReport::Line& line : most.lines)
    if (line.purpose == purpose) return line.bytes;
  return 0;
}

TEST(MemoryReport, TellsWhatTheMostWasFor) {
  const at::Tensor before = at::empty({1 << 20});
  MemoryReport report(at::Device(at::kCPU));
  at::Tensor kept, saved;
  {
    const base::MemoryScope purpose("parameters");
    kept = at::empty({1000});
  }
  {
    const base::MemoryScope outer("forward", "mlp");
    saved = at::empty({3000});
    const base::MemoryScope inner("recompute", "mlp");
    const at::Tensor brief = at::empty({500});
  }
  const at::Tensor unnamed = at::empty({400});
  MemoryReport::Most most = report.most();
  EXPECT_EQ(most.bytes, 4500 * 4);  // while `brief` lived
  EXPECT_EQ(bytes_for(most, "parameters"), 4000);
  EXPECT_EQ(bytes_for(most, "forward, mlp"), 12000);
  EXPECT_EQ(bytes_for(most, "recompute, mlp"), 2000);
  EXPECT_EQ(most.lines.front().purpose, "forward, mlp");
  saved.reset();
  kept.reset();
  const at::Tensor larger = at::empty({9000});
  most = report.most();
  EXPECT_EQ(most.bytes, 9400 * 4);
  EXPECT_EQ(bytes_for(most, "other"), 9400 * 4);
  EXPECT_EQ(most.lines.size(), 1u);
}

TEST(MemoryReport, OfARunSumsUpToTheAllocatorsFigure) {
  const harness::ScratchFolder scratch;
  const base::Recipe recipe = base::Recipe::parse(R"(
    model = {layers = 3, embed = 64, heads = 4, kv_heads = 2, mlp = 160}
    data = {vocab = 400, length = 32, stories_bytes = 20000}
    train = {global_batch = 8, steps = 3}
    log = {tensorboard = false, trace = false, samples = 0, memory = true}
    eval = {fraction = 0}
  )",
                                                  "memory.toml");
  const base::Stop never;
  harness::on_ranks(1, [&](comm::World& world) {
    Start start;
    start.out = scratch / "run";
    run(world, recipe, start, {}, never);
  });
  const base::Json found = base::parse_json(base::read_file(scratch / "run" / "memory.json", 1 << 20));
  const auto most = found["bytes"].get<double>(), allocator = found["allocator_bytes"].get<double>();
  double sum = 0;
  std::map<std::string, double> by;
  for (const base::Json& line : found["purposes"]) sum += by[line["purpose"].get<std::string>()] = line["bytes"].get<double>();
  EXPECT_EQ(sum, most);
  EXPECT_NEAR(most / allocator, 1, 0.02);
  const double parameters = 400 * 64 + 3 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 160 + 2 * 64) + 64;
  EXPECT_GE(by["optimizer"], 8 * parameters);
  EXPECT_LT(by["optimizer"], 8.5 * parameters);
  const double tokens = 8 * 32, logits = tokens * 400 * 4;
  EXPECT_GE(by["forward, mlp"], 3 * tokens * 320 * 4);  // at least the outputs of gate and up of all layers must be kept
  EXPECT_GE(by["forward, head"], logits);
  EXPECT_LT(by["other"], 0.15 * most);
}

}  // namespace
}  // namespace cairn::train
