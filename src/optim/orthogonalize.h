#pragma once
#include <cstdint>

#include <ATen/core/ATen_fwd.h>
#include <c10/core/ScalarType.h>

namespace cairn::optim {

// The matrix with its singular values brought near 1 (about 0.7 to 1.2 after five iterations), its singular vectors kept: the quintic
// Newton-Schulz iteration x = a x + (b x x^T + c (x x^T)^2) x with Muon's coefficients. A matrix of zeros stays one. Products are in
// `products`: bf16 is what a GPU multiplies ten times as fast, and the iteration forgives its roundings; the result is as the matrix is.
// Several matrices of one size, each by itself, are computed together.
at::Tensor orthogonalize(const at::Tensor& matrices /*[rows, columns] or [matrix, rows, columns]*/, int64_t iterations,
                         at::ScalarType products);
// In bf16 on a GPU, in the matrix's own precision on a CPU.
at::Tensor orthogonalize(const at::Tensor& matrices, int64_t iterations);

}  // namespace cairn::optim
