#pragma once
// Runs changes of placement on threads and looks at values, gradients and bytes.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "harness/ranks.h"
#include "mesh/brute_force.h"
#include "mesh/redistribute.h"

namespace cairn::mesh {

// A logical tensor of whole numbers, so that sums of terms are exact too.
inline at::Tensor numbers(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return (at::arange(n, at::kDouble) * 3 - 17).view(shape);
}

// What came of one change.
struct Moved {
  at::Tensor logical;               // put together from the ranks' results
  std::vector<at::Tensor> results;  // by rank
  int64_t bytes = 0;                // booked by all ranks
};

struct MoveOptions {
  at::ScalarType dtype = at::kFloat;
  bool asynchronous = false;
};

// Does all changes one after the other on the same ranks.
inline std::vector<Moved> move_all(int ranks, const std::vector<RedistributePlan>& plans, const std::vector<at::Tensor>& logical,
                                   const MoveOptions& options = {}) {
  std::vector<Moved> moved(plans.size());
  std::vector<brute::Census> before, after;
  std::vector<std::vector<int64_t>> sent(plans.size(), std::vector<int64_t>(static_cast<size_t>(ranks), 0));
  for (size_t i = 0; i < plans.size(); ++i) {
    before.emplace_back(plans[i].change().from, plans[i].change().shape);
    after.emplace_back(plans[i].change().to, plans[i].change().shape);
    moved[i].results.resize(static_cast<size_t>(ranks));
  }
  harness::on_ranks(ranks, [&](comm::World& world) {
    const auto me = static_cast<size_t>(world.rank());
    const auto booked = [&] { return world.ledger().bytes_sent(world.rank(), comm::Purpose::parameter); };
    std::vector<Redistributed> moving;
    for (size_t i = 0; i < plans.size(); ++i) {
      const int64_t so_far = booked();
      const at::Tensor local = before[i].part(logical[i], world.rank(), options.dtype);
      if (options.asynchronous) {
        moving.push_back(start_redistribute(world, local, plans[i], {comm::Purpose::parameter, "w"}));
      } else {
        moved[i].results[me] = redistribute(world, local, plans[i], {comm::Purpose::parameter, "w"});
        sent[i][me] = booked() - so_far;
      }
    }
    for (size_t i = 0; i < moving.size(); ++i) {
      moving[i].ready.wait();
      moved[i].results[me] = moving[i].tensor;
    }
  });
  for (size_t i = 0; i < plans.size(); ++i) {
    moved[i].logical = after[i].put_together(moved[i].results);
    for (int64_t bytes : sent[i]) moved[i].bytes += bytes;
  }
  return moved;
}

inline Moved move_one(int ranks, const LayoutChange& change, const MoveOptions& options = {}) {
  return move_all(ranks, {RedistributePlan(change)}, {numbers(change.shape)}, options).front();
}

inline Layout layout(const std::string& mesh, const std::string& placement) { return {parse_mesh(mesh), parse_placement(placement)}; }

}  // namespace cairn::mesh
