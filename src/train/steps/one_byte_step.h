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

// A step is one round of sync/one_byte/replica.h. Every rank measures the slope of the loss of its share along random directions, by two
// forward passes for each direction. All ranks exchange the slopes, one byte each, and apply all of them. There are no gradients and there
// is no optimizer state. See one_byte_step.cpp.
struct OneByteParts {
  sync::OneByteOptions options;
  uint64_t run = 0;
  comm::Group& machines;
  std::vector<bool> trained;  // for each parameter of the model
  std::filesystem::path log;  // the file that rounds are appended to; empty: none
};
std::unique_ptr<Step> make_one_byte_step(Engine& engine, OneByteParts parts);

}  // namespace cairn::train
