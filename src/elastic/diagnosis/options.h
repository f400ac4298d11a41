// The recipe's diagnosis.* keys.
#pragma once
#include <cstdint>

#include "base/schema.h"

namespace cairn::elastic {

struct DiagnosisOptions {
  bool enabled = true;
  int64_t window = 20;
  double hang_s = 5;
  double slow_ratio = 1.5;
  double straggler = 0.05;
};

base::Schema<DiagnosisOptions> diagnosis_schema();

}  // namespace cairn::elastic
