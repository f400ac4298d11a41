// Copies of experts for one step: spAG and spRS as changes of placement.
#include <mutex>
#include <string>

#include <ATen/core/IListRef.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "mesh/redistribute.h"
#include "parallel/expert_copies/copy_plan.h"

namespace cairn::parallel {
namespace {

struct CopyCase {
  mesh::Ragged placement;
  int64_t width;
};

std::vector<CopyCase> random_cases(int ranks, uint64_t seed, int count) {
  std::vector<CopyCase> cases;
  for (int i = 0; i < count; ++i) {
    const base::Random random = base::Random(seed).for_index(static_cast<uint64_t>(i));
    const uint64_t experts = 1 + random.below(0, 9);
    CopyCase one{.placement = {}, .width = 1 + static_cast<int64_t>(random.below(1, 5))};
    for (uint64_t expert = 0; expert < experts; ++expert) {
      std::vector<int> owners{static_cast<int>(random.for_index(expert).below(0, static_cast<uint64_t>(ranks)))};
      for (int rank = 0; rank < ranks; ++rank)
        if (rank != owners.front() && random.for_index(expert).below(1 + static_cast<uint64_t>(rank), 3) == 0) owners.push_back(rank);
      one.placement.owners.push_back(owners);
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

TEST(SparseCollectives, GatherThenReduceOfOnesCountsTheHoldersExactly) {
  for (const auto& [ranks, count] : {std::pair{2, 200}, {4, 400}, {5, 400}}) {
    const std::vector<CopyCase> cases = random_cases(ranks, static_cast<uint64_t>(ranks), count);
    std::vector<int64_t> gathered(cases.size(), 0), reduced(cases.size(), 0);  // bytes
    std::mutex mutex;
    harness::on_ranks(ranks, [&](comm::World& world) {
      const mesh::Mesh mesh = mesh::parse_mesh("ep=" + std::to_string(world.size()));
      const auto booked = [&] { return world.ledger().bytes_sent(world.rank(), comm::Purpose::parameter); };
      for (size_t i = 0; i < cases.size(); ++i) {
        const mesh::Ragged& placement = cases[i].placement;
        const std::vector<int64_t> shape{static_cast<int64_t>(placement.owners.size()), cases[i].width};
        std::vector<at::Tensor> own;
        for (const int64_t expert : mesh::ids_of(mesh::homes(placement), world.rank()))
          own.push_back(at::full({1, shape[1]}, static_cast<double>(expert) + 0.25, at::kFloat));
        const int64_t begun = booked();
        const at::Tensor held = mesh::redistribute(world, own.empty() ? at::empty({0, shape[1]}, at::kFloat) : at::cat(own),
                                                   sparse_all_gather(mesh, "ep", placement, shape), {comm::Purpose::parameter, "experts"});
        const int64_t between = booked();
        const std::vector<int64_t> ids = mesh::ids_of(placement, world.rank());
        ASSERT_EQ(held.size(0), static_cast<int64_t>(ids.size()));
        for (size_t k = 0; k < ids.size(); ++k)
          EXPECT_TRUE(at::equal(held[static_cast<int64_t>(k)], at::full({shape[1]}, static_cast<double>(ids[k]) + 0.25, at::kFloat)));
        const at::Tensor sums = mesh::redistribute(world, at::ones_like(held), sparse_reduce_scatter(mesh, "ep", placement, shape),
                                                   {comm::Purpose::parameter, "gradients"});
        int64_t row = 0;
        for (const int64_t expert : mesh::ids_of(mesh::homes(placement), world.rank())) {
          const auto holders = static_cast<double>(placement.owners[static_cast<size_t>(expert)].size());
          EXPECT_TRUE(at::equal(sums[row++], at::full({shape[1]}, holders, at::kFloat)));
        }
        const std::lock_guard lock(mutex);
        gathered[i] += between - begun;
        reduced[i] += booked() - between;
      }
    });
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(gathered[i], copies_in(cases[i].placement) * cases[i].width * 4) << i;
      EXPECT_EQ(reduced[i], copies_in(cases[i].placement) * cases[i].width * 4) << i;
    }
  }
}

}  // namespace
}  // namespace cairn::parallel
