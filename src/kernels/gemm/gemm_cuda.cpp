// GEMMs by cuBLASLt. Its matrices are column-major, so a row-major matrix appears transposed, and each product is computed as its
// transpose: y^T = w x^T. Descriptors and the chosen algorithm are cached by shape, strides, dtypes and alignment.
#include "kernels/gemm/gemm_cuda.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/gemm/fp8_cuda.h"

namespace cairn::kernels {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

void check(cublasStatus_t status, const char* what) {
  CAIRN_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {}: {}", what, cublasLtGetStatusString(status));
}

template <class T>
struct Destroy {
  void operator()(T* handle) const {
    if constexpr (std::is_same_v<T, cublasLtMatmulDescOpaque_t>) cublasLtMatmulDescDestroy(handle);
    if constexpr (std::is_same_v<T, cublasLtMatrixLayoutOpaque_t>) cublasLtMatrixLayoutDestroy(handle);
    if constexpr (std::is_same_v<T, cublasLtMatmulPreferenceOpaque_t>) cublasLtMatmulPreferenceDestroy(handle);
  }
};
using MatmulDesc = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescOpaque_t>>;
using MatrixLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutOpaque_t>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceOpaque_t>>;

bool is_matrix(const at::Tensor& x, at::ScalarType type) {
  return x.is_cuda() && x.scalar_type() == type && x.dim() == 2 && x.size(0) > 0 && x.size(1) > 0 && (x.size(1) == 1 || x.stride(1) == 1) &&
         (x.size(0) == 1 || x.stride(0) >= x.size(1));
}
bool is_input(const at::Tensor& x) { return is_matrix(x, at::kBFloat16); }
// fp8 codes by rows, as cuBLASLt requires them.
bool is_codes(const at::Tensor& x) {
  return (is_matrix(x, at::kFloat8_e4m3fn) || is_matrix(x, at::kFloat8_e5m2)) && x.size(1) % 16 == 0 && x.stride(0) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}
bool is_output(const at::Tensor& x) { return is_matrix(x, at::kBFloat16) || is_matrix(x, at::kFloat); }

int64_t leading(const at::Tensor& x) { return x.size(0) == 1 ? x.size(1) : x.stride(0); }

cudaDataType_t type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return CUDA_R_32F;
    case at::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case at::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_16BF;
  }
}

// The largest power of two, up to 256, that divides an address: a constraint for the choice of an algorithm.
uint32_t alignment_of(const void* data) {
  uint32_t bytes = 256;
  while (reinterpret_cast<uintptr_t>(data) % bytes != 0) bytes /= 2;
  return bytes;
}

// d = a b, plus c where given, in cuBLASLt's column-major terms: a is [m, k] or its transpose, b [k, n] or its transpose, c and d [m, n].
struct Matmul {
  int64_t m = 0, n = 0, k = 0;
  const at::Tensor &a, &b;
  bool transpose_a = false, transpose_b = false;
  const at::Tensor* c = nullptr;
  const at::Tensor& d;
  const at::Tensor *factor_a = nullptr, *factor_b = nullptr;  // of fp8 codes
  bool fast = false;                                          // fast accumulation, with fewer bits
};

// A cached GEMM: what depends on sizes, strides, dtypes and alignment, not on addresses.
struct MatmulPlan {
  MatmulDesc operation;
  MatrixLayout a, b, c, d;
  cublasLtMatmulAlgo_t algorithm{};
  std::mutex launch = {};  // fp8 factors are set in the descriptor for each launch
};

MatrixLayout layout_of(const at::Tensor& x) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(x), static_cast<uint64_t>(x.size(1)), static_cast<uint64_t>(x.size(0)), leading(x)),
        "a layout");
  return MatrixLayout(layout);
}

// cuBLASLt ranks algorithms by cycles. In a long row of large GEMMs a card runs at its power limit, and the algorithm with the least energy
// is the fastest: the largest tiles, in clusters of two blocks that share their reads.
bool is_energy_efficient(const cublasLtMatmulAlgo_t& algorithm) {
  const auto attribute = [&](cublasLtMatmulAlgoConfigAttributes_t which, auto value) {
    size_t written = 0;
    check(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, which, &value, sizeof(value), &written), "an algorithm's attribute");
    return value;
  };
  return attribute(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{}) == CUBLASLT_MATMUL_TILE_256x128 &&
         attribute(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{}) == CUBLASLT_CLUSTER_SHAPE_1x2x1 &&
         attribute(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{}) <= 1;
}

// Whether such tiles fill the GPU for several waves, so that the partly filled last wave does not matter.
bool has_many_tiles(const Matmul& p) {
  constexpr int64_t kRounds = 4;
  const cudaDeviceProp* const card = at::cuda::getDeviceProperties(p.d.device().index());
  return card->major == 9 && (p.m + 255) / 256 * ((p.n + 127) / 128) >= kRounds * card->multiProcessorCount;
}

std::unique_ptr<MatmulPlan> prepare(cublasLtHandle_t handle, const Matmul& p) {
  auto made = std::make_unique<MatmulPlan>();
  cublasLtMatmulDesc_t operation = nullptr;
  check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  made->operation.reset(operation);
  const auto transposition = [&](cublasLtMatmulDescAttributes_t which, bool transpose) {
    const cublasOperation_t value = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(operation, which, &value, sizeof(value)), "a transposition");
  };
  transposition(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a);
  transposition(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b);
  if (p.fast) {
    const int8_t fast = 1;
    check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)), "a way of summing");
  }
  made->a = layout_of(p.a), made->b = layout_of(p.b), made->d = layout_of(p.d), made->c = layout_of(p.c ? *p.c : p.d);

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "a preference");
  const Preference kept(preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof(value)), "a preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Split-K partial sums are never added in bf16.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.a.const_data_ptr()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.b.const_data_ptr()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of((p.c ? *p.c : p.d).const_data_ptr()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.d.const_data_ptr()));
  std::array<cublasLtMatmulHeuristicResult_t, 4> found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, operation, made->a.get(), made->b.get(), made->c.get(), made->d.get(), preference,
                                       static_cast<int>(found.size()), found.data(), &count),
        "an algorithm");
  CAIRN_CHECK(count > 0, "cuBLASLt has no algorithm for a product of {} x {} x {}", p.m, p.n, p.k);
  const auto last = found.begin() + count;
  auto chosen = has_many_tiles(p) ? std::find_if(found.begin(), last, [](const auto& one) { return is_energy_efficient(one.algo); }) : last;
  if (chosen == last) chosen = found.begin();
  made->algorithm = chosen->algo;
  return made;
}

MatmulPlan& prepared(cublasLtHandle_t handle, const Matmul& p, int device) {
  const at::Tensor& c = p.c ? *p.c : p.d;
  const auto aligned = [](const at::Tensor& x) { return static_cast<int64_t>(alignment_of(x.const_data_ptr())); };
  const std::array<int64_t, 19> key{device,         p.m,          p.n,          p.k,           leading(p.a),
                                    leading(p.b),   leading(c),   leading(p.d), p.transpose_a, p.transpose_b,
                                    p.c != nullptr, type_of(p.d), aligned(p.a), aligned(p.b),  aligned(c),
                                    aligned(p.d),   type_of(p.a), type_of(p.b), p.fast};
  static std::mutex lock;
  static std::map<std::array<int64_t, 19>, std::unique_ptr<MatmulPlan>> known;
  const std::lock_guard guard(lock);
  std::unique_ptr<MatmulPlan>& found = known[key];
  if (!found) found = prepare(handle, p);
  return *found;
}

// The handle of a device. ATen's handle would bring an unused workspace of 32 MiB per stream. Never destroyed: CUDA may be gone at exit.
cublasLtHandle_t handle_of(int64_t device) {
  static std::mutex lock;
  static std::map<int64_t, cublasLtHandle_t> handles;
  const std::lock_guard guard(lock);
  cublasLtHandle_t& handle = handles[device];
  if (!handle) check(cublasLtCreate(&handle), "a start");
  return handle;
}

void multiply(const Matmul& p) {
  const c10::cuda::CUDAGuard device(p.d.device());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  cublasLtHandle_t handle = handle_of(p.d.device().index());
  MatmulPlan& how = prepared(handle, p, p.d.device().index());
  // From the caching allocator: GEMMs on one stream run one after the other, so the next one gets the same bytes.
  const at::Tensor workspace = at::empty({static_cast<int64_t>(kWorkspaceBytes)}, p.d.options().dtype(at::kByte));
  const float one = 1, keep = p.c ? 1 : 0;
  std::unique_lock guard(how.launch, std::defer_lock);
  if (p.factor_a) {
    guard.lock();
    const void *factor_a = p.factor_a->const_data_ptr(), *factor_b = p.factor_b->const_data_ptr();
    check(cublasLtMatmulDescSetAttribute(how.operation.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &factor_a, sizeof(factor_a)),
          "a factor");
    check(cublasLtMatmulDescSetAttribute(how.operation.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &factor_b, sizeof(factor_b)),
          "a factor");
  }
  check(cublasLtMatmul(handle, how.operation.get(), &one, p.a.const_data_ptr(), how.a.get(), p.b.const_data_ptr(), how.b.get(), &keep,
                       (p.c ? *p.c : p.d).const_data_ptr(), how.c.get(), p.d.mutable_data_ptr(), how.d.get(), &how.algorithm,
                       workspace.mutable_data_ptr(), kWorkspaceBytes, stream),
        "a product");
}

}  // namespace

bool linear_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const at::Tensor* onto) {
  if (!is_output(y) || !is_input(x) || !is_input(w) || (onto && !is_matrix(*onto, y.scalar_type()))) return false;
  multiply({.m = w.size(0), .n = x.size(0), .k = x.size(1), .a = w, .b = x, .transpose_a = true, .c = onto, .d = y});
  return true;
}

bool linear_backward_input_on_cuda(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, bool accumulate) {
  if (!is_output(dx) || !is_input(dy) || !is_input(w)) return false;
  multiply({.m = w.size(1), .n = dy.size(0), .k = w.size(0), .a = w, .b = dy, .c = accumulate ? &dx : nullptr, .d = dx});
  return true;
}

bool linear_backward_weight_on_cuda(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  if (!is_output(dw) || !is_input(dy) || !is_input(x)) return false;
  multiply(
      {.m = x.size(1), .n = dy.size(1), .k = x.size(0), .a = x, .b = dy, .transpose_b = true, .c = accumulate ? &dw : nullptr, .d = dw});
  return true;
}

bool fp8_gemm_on_cuda(const at::Tensor& y, const at::Tensor& x, const at::Tensor& x_factor, const at::Tensor& w, const at::Tensor& w_factor,
                      const at::Tensor* onto, bool fast) {
  if (!is_output(y) || !is_codes(x) || !is_codes(w) || y.size(1) % 16 != 0 || alignment_of(y.const_data_ptr()) < 16 ||
      leading(y) % 8 != 0 || (onto && (alignment_of(onto->const_data_ptr()) < 16 || leading(*onto) % 8 != 0)) ||
      (onto && !is_matrix(*onto, y.scalar_type())) || !has_fp8(y.device()))
    return false;
  multiply({.m = w.size(0),
            .n = x.size(0),
            .k = x.size(1),
            .a = w,
            .b = x,
            .transpose_a = true,
            .c = onto,
            .d = y,
            .factor_a = &w_factor,
            .factor_b = &x_factor,
            .fast = fast});
  return true;
}

}  // namespace cairn::kernels
