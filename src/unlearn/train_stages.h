// Trains every stage that a store lacks: all of a new one, or what deletions have taken. Those that answer for nobody come first.
#pragma once
#include <cstdint>

#include "unlearn/stage.h"
#include "unlearn/store.h"

namespace cairn::base {
class Log;
}

namespace cairn::unlearn {

struct TrainedStages {
  int64_t stages = 0;
  int64_t discarded = 0;        // trained, but a deletion came meanwhile
  int64_t elsewhere = 0;        // orders that another process is training
  int64_t without_records = 0;  // orders that end early: their next slices have no record left
  double examples = 0;          // records read, times epochs
  double seconds = 0;
};

// Collective; rank 0 decides what is next. Several processes may do it at once: each takes an order that no other has. Deletions may come
// at any time, and the store answers all along.
TrainedStages train_missing_stages(comm::World& world, const Store& store, const StageSetup& setup, base::Log& log, const base::Stop& stop);

}  // namespace cairn::unlearn
