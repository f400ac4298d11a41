#pragma once
#include "model/context/form.h"
#include "model/context/split.h"

namespace cairn::comm {
class Group;
}

namespace cairn::model {

// How the sequences of one call lie on ranks: who holds which positions, and how queries see the keys of other ranks. One batch has one;
// plans that differ from step to step give each of their batches another, with any ranks along cp as its group.
struct ContextLayout {
  ContextSplit split;
  ContextMethod method;
  comm::Group* group = nullptr;  // borrowed; a rank's place in it is its coordinate in the split; null: all ranks along cp
  ContextMistakes mistakes = {};
};

}  // namespace cairn::model
