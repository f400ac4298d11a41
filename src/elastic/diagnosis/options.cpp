#include "elastic/diagnosis/options.h"

namespace cairn::elastic {

base::Schema<DiagnosisOptions> diagnosis_schema() {
  using O = DiagnosisOptions;
  return {"diagnosis",
          "How the agent finds the rank or link that holds up a run. Collectives are recorded always; they cost no setting.",
          {{"enabled", &O::enabled, "Whether the agent of each machine reads the records of its ranks once a second."},
           {"window", &O::window, "Steps, or messages of a pair of ranks, that are compared at a time.", base::between(4, 80)},
           {"hang_s", &O::hang_s, "Seconds of waiting after which a run counts as hung; at least ten usual waits of that operation.",
            base::at_least(0.5)},
           {"slow_ratio", &O::slow_ratio, "How many times slower than usual a path, sender or receiver must be to be reported.",
            base::more_than(1)},
           {"straggler", &O::straggler, "The share of a step by which a rank must be behind ranks with the same work to be reported.",
            base::between(0.001, 1)}}};
}

}  // namespace cairn::elastic
