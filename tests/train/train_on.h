#pragma once
#include <filesystem>

#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local.h"
#include "train/train.h"

namespace cairn::train {

// A run on so many ranks, which are threads of this process.
inline void train_on(int ranks, const base::Recipe& recipe, const std::filesystem::path& out, bool resume = false) {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         run(world, recipe, {.out = out, .resume = resume, .cache = {}, .terminal = nullptr}, {}, base::Stop());
       }))
    if (error) std::rethrow_exception(error);
}

}  // namespace cairn::train
