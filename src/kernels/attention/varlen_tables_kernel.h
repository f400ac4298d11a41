// What the host hands to the CUDA kernel that says where runs of positions lie, for cuDNN (cudnn_varlen.h) and FlashAttention-2.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

constexpr int kVarlenTensors = 6;  // at most

// Runs are the documents of all rows, one row after the other, without those that have no position; behind the last of them empty ones.
// Table 0: how many positions each has; table 1 + t: how many elements of tensor t lie before it, and at the end how many there are.
struct VarlenTablesLaunch {
  int32_t* tables;    // [1 + tensors, pitch]
  int64_t pitch;      // more than runs
  int64_t sequences;  // at least as many as have a position; the GPU gives up where there are more
  const int32_t* starts;
  int64_t rows, documents, length;  // starts: [rows, documents], where they begin in a row, filled up with its length
  int tensors;
  int32_t strides[kVarlenTensors];  // elements of each tensor from one position to the next
};
cudaError_t launch_varlen_tables(const VarlenTablesLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
