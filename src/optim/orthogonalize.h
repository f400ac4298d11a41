#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::optim {

// Brings the singular values of a matrix near 1 (about 0.7 to 1.2 after five iterations) and keeps its singular vectors. A matrix of
// zeros stays zero. `products` is the dtype of the matrix products: bf16 is about ten times as fast on a GPU, and the iteration forgives
// its rounding. The result has the dtype of `matrices`. Matrices of a batch are independent of each other.
at::Tensor orthogonalize(const at::Tensor& matrices /*[rows, columns] or [matrix, rows, columns]*/, int64_t iterations,
                         at::ScalarType products);

// The same with products in bf16 on a GPU and in the matrix's own dtype on a CPU.
at::Tensor orthogonalize(const at::Tensor& matrices, int64_t iterations);

}  // namespace cairn::optim
