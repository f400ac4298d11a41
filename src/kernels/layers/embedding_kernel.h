// The arguments of the embedding kernels.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

struct EmbeddingLaunch {
  Elements elements;
  void* y;
  const void* table;
  const int64_t* ids;
  int64_t count, vocab, embed;
};
cudaError_t launch_embedding(const EmbeddingLaunch& launch, cudaStream_t stream);

// Gradients summed by id: ids are sorted, and places[i] is the row of dy that belongs to sorted id i.
int64_t embedding_backward_slices(int64_t count);
struct EmbeddingBackwardLaunch {
  Elements elements, table_elements;  // of dy, of dtable
  void* dtable;
  const void* dy;
  const int32_t* ids;
  const int64_t* places;
  float* ends;  // room for [embedding_backward_slices, 2, embed]
  int64_t count, vocab, embed;
};
cudaError_t launch_embedding_backward(const EmbeddingBackwardLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
