// Trials of the diagnosis in virtual time: eight ranks with the traffic of a tp=2, pp=2, dp=2 step and one more that looks at their
// records once a second, as an agent does. One fault, or none.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "elastic/diagnosis/finding.h"

namespace cairn::study {

enum class C4Fault {
  none,
  stuck,
  frozen,
  killed,
  lost_messages,
  late_loader,
  slow_path,
  slow_sender,
  slow_receiver,
  straggler,
  slow_loader,
  all_slower
};

struct C4Trial {
  C4Fault fault = C4Fault::none;
  uint64_t seed = 1;
  int64_t steps = 80;
};

struct C4Outcome {
  std::optional<elastic::Finding> found;  // the first one
  int rank = -1, peer = -1;               // the culprit, as drawn
  double seconds = 0;                     // virtual, from the fault to the report
  int64_t steps = 0;                      // likewise, in steps
  bool right() const;
  C4Fault fault = C4Fault::none;
  std::string line() const;
};

C4Outcome run_c4_trial(const C4Trial& trial);

}  // namespace cairn::study
