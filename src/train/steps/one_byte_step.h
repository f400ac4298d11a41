#pragma once
#include "base/schema.h"
#include "sync/one_byte/replica.h"
#include "train/step_methods.h"

namespace cairn::train {

// The recipe's train.one_byte.* keys.
base::Schema<sync::OneByteOptions> one_byte_schema();

StepMethod one_byte_method();

}  // namespace cairn::train
