#pragma once
#include <cstdint>

#include "mesh/batch.h"
#include "model/context/split.h"

namespace cairn::parallel {

// A sequence of `length` positions over `parts` coordinates along cp. Balanced: 2 * parts even chunks, of which coordinate c holds chunks c
// and 2 * parts - 1 - c, so that under a causal mask all have the same work; otherwise one after the other. Where the length does not
// divide, the first chunks are one longer; short sequences leave coordinates without positions, which still take part.
model::ContextSplit make_context_split(int64_t length, int parts, bool balanced);

// The batch as one coordinate sees it: per-sample fields of shape [samples, length] (tokens, targets, documents, positions) cut to its
// positions in storage order, everything else as it is. Where the batch has no "positions", they are added: int64 [samples, local], counted
// over the whole sequence.
mesh::Batch cut_context(const mesh::Batch& batch, const model::ContextSplit& split, int coordinate);

}  // namespace cairn::parallel
