// The tables of variable-length attention (FlashAttention-2: cu_seqlens, cuDNN: sequence lengths and ragged offsets), made on the GPU.
#pragma once
#include "kernels/cuda/launch.h"

namespace cairn::kernels {

constexpr int kVarlenTensors = 6;  // at most

// The sequences are the non-empty documents of all rows, one row after the other; unused entries at the end are empty sequences.
// Table 0: positions of each sequence. Table 1 + t: elements of tensor t before each sequence, and at the end the total.
struct VarlenTablesLaunch {
  int32_t* tables;    // [1 + tensors, pitch]
  int64_t pitch;      // more than sequences
  int64_t sequences;  // upper bound of non-empty sequences; the kernel traps where there are more
  const int32_t* starts;
  int64_t rows, documents, length;  // starts: [rows, documents], where documents begin in a row, padded with its length
  int tensors;
  int32_t strides[kVarlenTensors];  // elements of each tensor from one position to the next
};
cudaError_t launch_varlen_tables(const VarlenTablesLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
