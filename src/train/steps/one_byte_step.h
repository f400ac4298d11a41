#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "base/schema.h"
#include "parallel/plan.h"
#include "sync/one_byte/replica.h"
#include "train/step.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

struct Settings;

// The recipe's train.one_byte.* keys.
base::Schema<sync::OneByteOptions> one_byte_schema();

// Refuses what a step of slopes cannot do: train.method = "one_byte".
void check_one_byte(const Settings& settings, const parallel::Plan& plan);

// A step as a round of sync/one_byte/replica.h: every rank looks at the loss of its share on both sides of the weights along so many random
// directions, all ranks tell each other the slopes, a byte each, and all replay all of them. No gradients, nothing kept by an optimizer.
struct OneByteParts {
  sync::OneByteOptions options;
  uint64_t run = 0;
  comm::Group& machines;
  std::vector<bool> trained;  // by place in the model
  std::filesystem::path log;  // rounds are appended here; empty: nowhere
};
std::unique_ptr<Step> make_one_byte_step(Engine& engine, OneByteParts parts);

}  // namespace cairn::train
