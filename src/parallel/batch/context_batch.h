#pragma once
#include <cstdint>

#include "mesh/batch.h"
#include "model/context/split.h"

namespace cairn::parallel {

// Splits a sequence of `length` positions over `parts` coordinates along cp. Balanced (zigzag): 2 * parts chunks, of which coordinate c has
// chunks c and 2 * parts - 1 - c, so that under a causal mask all have the same work. Otherwise one contiguous chunk each. If the length
// does not divide, the first chunks are one longer. Short sequences leave coordinates without positions; these still take part in
// collectives.
model::ContextSplit make_context_split(int64_t length, int parts, bool balanced);

// The batch of one coordinate: fields of shape [samples, length], or [rows, length] where a sample has several rows (tokens, targets,
// documents, positions), are cut to its positions in storage order, other fields stay. If the batch has no field "positions", it is added:
// int64 [rows, local], positions in the whole sequence.
mesh::Batch cut_context(const mesh::Batch& batch, const model::ContextSplit& split, int coordinate);

}  // namespace cairn::parallel
