#include "optim/swapped_optimizer.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "harness/disk_folder.h"
#include "kernels/aten.h"
#include "optim/options.h"
#include "series.h"

namespace cairn::optim {
namespace {

const std::vector<std::vector<int64_t>> kShapes{{7, 5}, {5}, {11, 3}, {3}, {13, 9}, {1}, {6, 4}};
const std::vector<int64_t> kGroups{0, 0, 1, 1, 2, 3, 3};

std::vector<Walk> walks() {
  std::vector<Walk> all;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    all.emplace_back(kShapes[i], "layers." + std::to_string(i) + ".w");
    all.back().piece.group = kGroups[i];
  }
  return all;
}

void step(std::vector<Walk>& all, Optimizer& rule, int64_t at) {
  for (const Walk& one : all) one.gradient_at(at);
  rule.update_several(0, static_cast<int64_t>(all.size()), {.step = at, .learning_rate = 0.02});
}

std::vector<ParameterPiece> pieces_of(const std::vector<Walk>& all) {
  std::vector<ParameterPiece> pieces;
  for (const Walk& one : all) pieces.push_back(one.piece);
  return pieces;
}

// Every rule, whatever it keeps: parameters and state are those of a rule that owns its memory, to the bit.
TEST(SwappedOptimizer, UpdatesAsTheRuleDoesInMemory) {
  for (const std::string kind : {"adamw", "sgd", "muon", "adafactor", "riemannian_adam"})
    for (const memory::TierKind home : {memory::TierKind::host, memory::TierKind::disk})
      for (const int64_t ahead : {0, 2}) {
        const OptimOptions options{.kind = kind, .momentum = 0.9, .weight_decay = 0.1};
        std::vector<Walk> plain = walks(), swapped = walks();
        const auto in_memory = make_optimizer(options, pieces_of(plain));
        const harness::DiskFolder folder;
        const base::RealClock clock;
        base::Log log = base::Log::quiet();
        mesh::TensorSwapper swapper(
            std::make_unique<memory::Tier>(
                memory::TierOptions{.host_bytes = home == memory::TierKind::disk ? 6 * memory::kPageBytes : 64 * memory::kPageBytes,
                                    .swap = {.folder = folder.path(), .run_id = "t", .bytes = 1 << 20}},
                clock, log),
            clock);
        const auto memory = swapped_state_memory(swapper, home);
        const auto rule = swap_groups(make_optimizer(options, pieces_of(swapped), memory.get()), pieces_of(swapped), swapper, ahead);
        for (int64_t at = 1; at <= 4; ++at) step(plain, *in_memory, at), step(swapped, *rule, at);
        for (size_t i = 0; i < plain.size(); ++i)
          EXPECT_TRUE(at::equal(plain[i].piece.parameter, swapped[i].piece.parameter)) << kind << ' ' << i;
        const mesh::NamedTensors expected = in_memory->state(), found = rule->state();
        ASSERT_EQ(expected.size(), found.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          const auto there = swapper.hold(found[i].tensor, mesh::TensorSwapper::Access::read);
          EXPECT_EQ(expected[i].name, found[i].name);
          EXPECT_TRUE(at::equal(expected[i].tensor, found[i].tensor)) << kind << ' ' << found[i].name;
        }
      }
}

// Parameters and gradients may be away too; part of the pieces may be updated.
TEST(SwappedOptimizer, FetchesParametersAndGradients) {
  const harness::DiskFolder folder;
  const base::RealClock clock;
  base::Log log = base::Log::quiet();
  mesh::TensorSwapper swapper(
      std::make_unique<memory::Tier>(
          memory::TierOptions{.host_bytes = 8 * memory::kPageBytes, .swap = {.folder = folder.path(), .run_id = "t", .bytes = 1 << 20}},
          clock, log),
      clock);
  std::vector<Walk> plain = walks(), swapped = walks();
  for (Walk& one : swapped)
    for (at::Tensor* tensor : {&one.piece.parameter, &one.piece.gradient}) {
      const at::Tensor away =
          swapper.make({.name = one.piece.name + (tensor == &one.piece.parameter ? "" : ".gradient")}, tensor->numel(), at::kFloat)
              .view(tensor->sizes());
      const auto there = swapper.hold(away, mesh::TensorSwapper::Access::overwrite);
      away.copy_(*tensor);
      *tensor = away;
    }
  const OptimOptions options{.kind = "adamw"};
  const auto in_memory = make_optimizer(options, pieces_of(plain));
  const auto memory = swapped_state_memory(swapper, memory::TierKind::disk);
  const auto rule = swap_groups(make_optimizer(options, pieces_of(swapped), memory.get()), pieces_of(swapped), swapper, 1);
  for (int64_t at = 1; at <= 3; ++at) {
    for (size_t i = 0; i < plain.size(); ++i) {
      plain[i].gradient_at(at);
      const auto there = swapper.hold(swapped[i].piece.gradient, mesh::TensorSwapper::Access::overwrite);
      swapped[i].gradient_at(at);
    }
    for (Optimizer* one : {in_memory.get(), rule.get()}) one->update_several(1, 5, {.step = at, .learning_rate = 0.02});
  }
  for (size_t i = 0; i < plain.size(); ++i) {
    const auto there = swapper.hold(swapped[i].piece.parameter, mesh::TensorSwapper::Access::read);
    EXPECT_TRUE(at::equal(plain[i].piece.parameter, swapped[i].piece.parameter)) << i;
  }
}

}  // namespace
}  // namespace cairn::optim
