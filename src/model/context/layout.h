#pragma once
#include <ATen/core/Tensor.h>

#include "model/context/form.h"
#include "model/context/linear_form.h"
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
  LinearForm linear = LinearForm::zeco;  // how states of linear attention are handed on
  int64_t scan_blocks = 0;               // zeco: pipelined blocks of a state; 0: by the links
  StateDtype state_dtype = StateDtype::fp32;
  at::Tensor document_before = {};  // [batch] int64: the document of the position before this rank's first; undefined: no documents
  comm::Group* group = nullptr;  // borrowed; a rank's place in it is its coordinate in the split; null: all ranks along cp
  ContextMistakes mistakes = {};
};

}  // namespace cairn::model
