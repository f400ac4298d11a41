#pragma once
#include <cstdint>
#include <string>

#include "model/context/choose.h"
#include "parallel/plan.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// What attention along cp works on.
struct ContextBatch {
  int64_t sequences = 1;  // of one pass
  int64_t length = 0;
  bool documents = false;
  int64_t element_bytes = 4;
};

// Fills in the method that `context.form = "auto"` leaves open, and returns why it was chosen; empty if it was given. Refuses what the
// model or the length does not allow, and names what does. Does nothing without cp.
std::string settle_context(Plan& plan, const model::Model& model, const ContextBatch& batch, const model::ContextLinks& links);

}  // namespace cairn::parallel
