// fp8 linear layers: matrices of fp8 codes with one scale, and the three matrix products of a linear layer on them.
//
// Scaling is per tensor and current (not delayed): a matrix is scaled by its own amax (largest magnitude), so no history is kept.
//   factor = the least power of two with amax <= factor * largest code,   code = round(x / factor),   value = code * factor
// `factor` is what Transformer Engine calls scale_inv. A power of two shifts exponents only, so a code is off by its own rounding alone.
// Values use e4m3 and gradients e5m2, as in "FP8 Formats for Deep Learning" (arXiv:2209.05433). Products accumulate in fp32.
#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace cairn::kernels {

// e4m3: up to 448, three bits of mantissa, for values. e5m2: up to 57,344, two bits, for gradients, whose range is wider.
enum class Fp8 { e4m3, e5m2 };

// An fp8 matrix [r, c] with one factor. fp8 tensor cores read both operands along the summed dim, so each product needs its operands by
// rows or by columns; a matrix may hold either form or both.
struct Fp8Matrix {
  at::Tensor rows = {};     // [r, c] codes; undefined: not made
  at::Tensor columns = {};  // [c, r] codes, the transpose, with r padded with zeros to a multiple of 16; undefined: not made
  at::Tensor factor = {};   // fp32 [1]
  bool defined() const { return factor.defined(); }
};

// Which of the two forms to make.
struct Fp8Forms {
  bool rows = true, columns = true;
};

// Quantizes x [r, c], bf16 or fp32 (on a GPU bf16 only). The last dim is contiguous, c is a multiple of 16. Rounds to nearest. Where x is
// not finite the factor is NaN (or only the code is, where a given `amax` hides it).
// `amax`, where it is known, saves a pass over x: int32 [n] on x's device. The largest of the n words is the bit pattern of an fp32 upper
// bound of the magnitudes of x.
Fp8Matrix to_fp8(const at::Tensor& x, Fp8 code, const Fp8Forms& forms = {}, const at::Tensor& amax = {});
// The e5m2 codes of the gradient of a cross entropy: cross_entropy_backward (cross_entropy.h) and to_fp8 in one pass. The logits may be
// destroyed. `amax` bounds the gradient; softmax - onehot is at most 1 in magnitude, so the largest scale is such a bound.
Fp8Matrix cross_entropy_to_fp8(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& targets, const at::Tensor& scale,
                               const at::Tensor& amax);
// Dequantizes: [r, c]. `rows` is r, because the column form is padded.
at::Tensor from_fp8(const Fp8Matrix& x, int64_t rows, at::ScalarType type);

// Whether this device is a GPU with fp8 tensor cores. Elsewhere fp8 is emulated.
bool has_fp8(const at::Device& device);

// Whether a matrix of this width can be quantized.
inline bool fits_fp8(int64_t width) { return width > 0 && width % 16 == 0; }

// The products of gemm.h with the same = and += contracts; outputs are bf16 or fp32. linear reads the rows of x and w,
// linear_backward_input the rows of dy and the columns of w, linear_backward_weight the columns of dy and x.
void linear(const at::Tensor& y, const Fp8Matrix& x, const Fp8Matrix& w, const at::Tensor* onto = nullptr);
void linear_backward_input(const at::Tensor& dx, const Fp8Matrix& dy, const Fp8Matrix& w, bool accumulate = false);
void linear_backward_weight(const at::Tensor& dw, const Fp8Matrix& dy, const Fp8Matrix& x, bool accumulate = false);

namespace reference {
Fp8Matrix to_fp8(const at::Tensor& x, Fp8 code, const Fp8Forms& forms = {});
// y = x w^T, or *onto + x w^T; codes by rows.
void fp8_gemm(const at::Tensor& y, const at::Tensor& x, const at::Tensor& x_factor, const at::Tensor& w, const at::Tensor& w_factor,
              const at::Tensor* onto);
}  // namespace reference

}  // namespace cairn::kernels
