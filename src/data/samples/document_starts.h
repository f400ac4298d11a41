#pragma once
#include "mesh/batch.h"

namespace cairn::data {

// Adds where documents begin in each sample, for libraries that take attention by runs of positions: "document_starts", int32 [samples,
// most documents of a sample or the next power of two], filled up with the samples' length; and "documents_counted", whose size alone says
// something: no more documents are in all samples, or in any of them. Only where "documents" are there; [samples, 0]
// where one is in two pieces.
void add_document_starts(mesh::Batch& batch);

}  // namespace cairn::data
