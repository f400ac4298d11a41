#pragma once
#include "mesh/batch.h"

namespace cairn::data {

// Adds what variable-length attention (cu_seqlens) needs, where the batch has the field "documents":
//   document_starts    int32 [samples, n]: the first position of each document of a sample, padded with the sample's length. n is the
//                      largest number of documents in a sample, rounded up to a power of two. [samples, 0] where some document lies in
//                      two separate parts of a sample: the kernel would let the parts attend to each other.
//   documents_counted  uint8 [m]: only its size matters. m is a bound on the documents of all samples together, rounded up to a power of
//   two.
void add_document_starts(mesh::Batch& batch);

}  // namespace cairn::data
