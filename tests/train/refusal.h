#pragma once
#include <string>

#include <gtest/gtest.h>

#include "base/recipe.h"
#include "base/stop.h"
#include "data/subset.h"
#include "harness/ranks.h"
#include "train/train.h"

namespace cairn::train {

// What a run of this recipe is refused with on this many ranks.
inline std::string refusal_of(const base::Recipe& recipe, int ranks = 1) {
  const base::Stop never;
  const harness::Run ended = harness::on_ranks(ranks, {.expect_errors = true}, [&](comm::World& world) { run(world, recipe, {}, {}, never); });
  EXPECT_EQ(ended.error_on(0).kind(), Error::Kind::bad_input);
  return ended.error_on(0).what();
}

}  // namespace cairn::train
