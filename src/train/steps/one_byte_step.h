#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "base/schema.h"
#include "parallel/plan.h"
#include "sync/one_byte/replica.h"
#include "train/step_methods.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

// The recipe's train.one_byte.* keys.
base::Schema<sync::OneByteOptions> one_byte_schema();

StepMethod one_byte_method();

// One step is one round of sync/one_byte/replica.h. Every rank measures the slope of the loss of its share along random directions, by two
// forward passes each; all ranks exchange the slopes, a byte each, and all replay all of them. No gradients, no optimizer state.
struct OneByteParts {
  sync::OneByteOptions options;
  uint64_t run = 0;
  comm::Group& machines;
  std::vector<bool> trained;  // by place in the model
  std::filesystem::path log;  // where rounds are appended; empty: nowhere
};
std::unique_ptr<Step> make_one_byte_step(Engine& engine, OneByteParts parts);

}  // namespace cairn::train
