#pragma once
#include "base/schema.h"
#include "sync/coding/gradient_code.h"
#include "sync/coding/straggler_chain.h"
#include "train/step_methods.h"

namespace cairn::train {

// The recipe's train.coded.* keys.
struct CodedOptions {
  int64_t stragglers = 1;
  sync::CodeKind code = sync::CodeKind::automatic;
  double mu = 0;
  double slow_enter = 0;
  double slow_leave = 0.5;
  double slow_s = 1;
};
base::Schema<CodedOptions> coded_schema();

StepMethod coded_method();

}  // namespace cairn::train
