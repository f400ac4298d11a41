#pragma once
#include "mesh/batch.h"

namespace cairn::parallel {

// Adds what losses by sequence read (model/experts/router.h) to a batch of tokens, before it is cut along cp: "sequences" int64
// [samples, length], the number of each token's sequence in the micro-batch, -1 for tokens without a target; "sequence_tokens" int64
// [sequences], how many of each count. A document is a sequence, packed or not; without documents a row is one.
void add_sequence_fields(mesh::Batch& batch);

}  // namespace cairn::parallel
