#pragma once
#include <cstdint>

#include "parallel/options.h"
#include "parallel/plan.h"

namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// What copies of experts take on a rank. A layer with copies holds its own experts beside them once more, in one tensor.
struct CopyMemory {
  int64_t layers = 0;        // that hold copies at once
  int64_t own = 0;           // experts of a layer at home on a rank, at most
  int64_t experts = 0;       // of a layer
  int64_t expert_bytes = 0;  // as passes read them
};
CopyMemory copy_memory(const model::Model& model, const Plan& plan, const ExpertLayoutOptions& options);

// Of a rank with so many slots, all of them in use.
int64_t bytes_of_copies(const CopyMemory& memory, int64_t slots);

// Refuses more expert.memory_slots than fit into so many bytes of a rank, and says how many do.
void check_copies_fit(const CopyMemory& memory, int64_t slots, int64_t free_bytes);

}  // namespace cairn::parallel
