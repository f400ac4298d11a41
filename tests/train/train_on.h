#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "train/train.h"

namespace cairn::train {

// A run on so many ranks, which are threads of this process.
inline void train_on(int ranks, const base::Recipe& recipe, const std::filesystem::path& out, bool resume = false,
                     const std::string& device = "cpu") {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         run(world, recipe, {.out = out, .resume = resume, .cache = {}, .device = device, .terminal = nullptr}, {}, base::Stop());
       }))
    if (error) std::rethrow_exception(error);
}

// The same, and its losses step by step.
inline std::vector<double> losses_on(int ranks, const base::Recipe& recipe, const std::filesystem::path& out, bool resume = false,
                                     const std::string& device = "cpu") {
  train_on(ranks, recipe, out, resume, device);
  std::vector<double> losses;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) losses.push_back(row.number("loss"));
  return losses;
}

}  // namespace cairn::train
