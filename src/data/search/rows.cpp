#include "data/search/rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // about passing wide vectors between functions: all of them are inlined

namespace cairn::data {
namespace {

class RowsInMemory final : public RowSource {
 public:
  explicit RowsInMemory(const at::Tensor& rows) : rows_(rows.contiguous()) {
    CAIRN_CHECK(rows_.dim() == 2 && (rows_.dtype() == at::kFloat || rows_.dtype() == at::kHalf), "rows with {} dims", rows_.dim());
  }
  int64_t rows() const override { return rows_.size(0); }
  int64_t dim() const override { return rows_.size(1); }
  at::Tensor read(int64_t first, int64_t count) const override { return rows_.narrow(0, first, count).to(at::kFloat); }

 private:
  at::Tensor rows_;
};

class ChosenRows final : public RowSource {
 public:
  ChosenRows(const RowSource& of, std::vector<int64_t> numbers) : of_(of), numbers_(std::move(numbers)) {
    for (const int64_t one : numbers_) CAIRN_CHECK(one >= 0 && one < of_.rows(), "row {} of {}", one, of_.rows());
  }
  int64_t rows() const override { return static_cast<int64_t>(numbers_.size()); }
  int64_t dim() const override { return of_.dim(); }

  // Neighbouring rows are read together.
  at::Tensor read(int64_t first, int64_t count) const override {
    const at::Tensor found = at::empty({count, dim()});
    for (int64_t done = 0, run = 0; done < count; done += run) {
      const int64_t begin = numbers_[static_cast<size_t>(first + done)];
      for (run = 1; done + run < count && numbers_[static_cast<size_t>(first + done + run)] == begin + run;) ++run;
      const at::Tensor part = of_.read(begin, run);
      std::memcpy(found.mutable_data_ptr<float>() + done * dim(), part.const_data_ptr<float>(),
                  static_cast<size_t>(run * dim()) * sizeof(float));
    }
    return found;
  }

 private:
  const RowSource& of_;
  std::vector<int64_t> numbers_;
};

// Eight partial sums, whatever the vectors of this machine: products of two floats are exact in double precision, so with or without fused
// multiply-add the sums are the same.
constexpr int kPartialSums = 8;
typedef double PartialSums __attribute__((vector_size(8 * kPartialSums)));
typedef float EightFloats __attribute__((vector_size(4 * kPartialSums)));

enum class Pairing { product, difference };

template <Pairing pairing>
struct FixedOrderSum {
  template <int W>
  static CAIRN_INLINE void run(const float* a, const float* b, int64_t dim, double* result) {
    PartialSums sums{};
    int64_t i = 0;
    for (; i + kPartialSums <= dim; i += kPartialSums) {
      EightFloats x, y;
      std::memcpy(&x, a + i, sizeof x);
      std::memcpy(&y, b + i, sizeof y);
      const PartialSums wide_x = __builtin_convertvector(x, PartialSums), wide_y = __builtin_convertvector(y, PartialSums);
      if constexpr (pairing == Pairing::product) {
        sums += wide_x * wide_y;
      } else {
        const EightFloats apart = x - y;
        const PartialSums wide = __builtin_convertvector(apart, PartialSums);
        sums += wide * wide;
      }
    }
    double lanes[kPartialSums];
    std::memcpy(lanes, &sums, sizeof lanes);
    for (; i < dim; ++i) {
      const float apart = a[i] - b[i];
      lanes[0] += pairing == Pairing::product ? static_cast<double>(a[i]) * static_cast<double>(b[i])
                                              : static_cast<double>(apart) * static_cast<double>(apart);
    }
    for (int half = kPartialSums / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    *result = lanes[0];
  }
};

}  // namespace

std::unique_ptr<RowSource> rows_in_memory(const at::Tensor& rows) { return std::make_unique<RowsInMemory>(rows); }

std::unique_ptr<RowSource> chosen_rows(const RowSource& of, std::vector<int64_t> numbers) {
  return std::make_unique<ChosenRows>(of, std::move(numbers));
}

RowShare share_of_rank(int64_t rows, int rank, int ranks) {
  const int64_t part = (rows + ranks - 1) / ranks, first = std::min(rows, part * rank);
  return {.first = first, .count = std::min(part, rows - first)};
}

float scalar_product(const float* a, const float* b, int64_t dim) {
  double sum = 0;
  kernels::simd::run<FixedOrderSum<Pairing::product>>(a, b, dim, &sum);
  return static_cast<float>(sum);
}

float squared_distance(const float* a, const float* b, int64_t dim) {
  double sum = 0;
  kernels::simd::run<FixedOrderSum<Pairing::difference>>(a, b, dim, &sum);
  return static_cast<float>(sum);
}

}  // namespace cairn::data
