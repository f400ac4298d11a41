// Matrices in eight bits, and the products of a linear layer on them.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// Which codes: e4m3 goes up to 448 with three bits of fraction, for values; e5m2 up to 57,344 with two, for gradients, which vary more.
enum class Fp8 { e4m3, e5m2 };

// A matrix of codes and one factor for all of them, a power of two: value = code * factor. It is the least one with which the largest value
// fits, as this matrix has it, so that nothing need be remembered from step to step; and since only exponents are shifted, a code is off by
// its own rounding alone. Products read both of their matrices along rows, so that a transpose may have to lie beside it.
struct Fp8Matrix {
  at::Tensor rows = {};     // [r, c], float8; undefined: not made
  at::Tensor columns = {};  // [c, r], where r is filled up with zeros to a multiple of 16; undefined: not made
  at::Tensor factor = {};   // fp32 [1]
  bool defined() const { return factor.defined(); }
};

// Which of the two are made.
struct Fp8Forms {
  bool rows = true, columns = true;
};

// Codes of x [r, c], bf16 or fp32 (on a GPU bf16); rows may lie apart, c is a multiple of 16. Rounds to the nearest. Where x has a value
// that is not finite, the factor is NaN (or the value's code, where a given `amax` does not show it).
// `amax`, where it is known: words whose largest is the bits of x's largest magnitude as a float, or of more than that; int32 [n], on
// x's device. Saves a pass over x.
Fp8Matrix to_fp8(const at::Tensor& x, Fp8 code, const Fp8Forms& forms = {}, const at::Tensor& amax = {});
// Codes in e5m2 of the gradient of a cross entropy: what cross_entropy_backward (cross_entropy.h) makes of these logits, of which nothing
// is left, in one pass. `amax` is that of the gradient: no probability is off by more than 1, so the largest scale will do.
Fp8Matrix cross_entropy_to_fp8(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                               const at::Tensor& amax);
// What the codes stand for: [r, c], where `rows` says r (the transpose has been filled up).
at::Tensor from_fp8(const Fp8Matrix& x, int64_t rows, at::ScalarType type);

// Whether products of this width may be in eight bits.
inline bool fits_fp8(int64_t width) { return width > 0 && width % 16 == 0; }

// As in gemm.h: outputs are bf16 or fp32. The first reads the rows of both, the second of w its columns, the third the columns of both.
void linear(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const at::Tensor* onto = nullptr);
void linear_backward_input(const at::Tensor& dx, const Fp8Matrix& dy, const Fp8Matrix& w, bool accumulate = false);
void linear_backward_weight(const at::Tensor& dw, const Fp8Matrix& dy, const Fp8Matrix& x, bool accumulate = false);

namespace reference {
Fp8Matrix to_fp8(const at::Tensor& x, Fp8 code, const Fp8Forms& forms = {});
// y = x w^T of codes by rows, or *onto + that.
void fp8_gemm(const at::Tensor& y, const at::Tensor& x, const at::Tensor& x_factor, const at::Tensor& w, const at::Tensor& w_factor,
              const at::Tensor* onto);
}  // namespace reference

}  // namespace cairn::kernels
