#include "comm/affine_map.h"

#include "base/check.h"

namespace cairn::comm {
namespace {

template <typename T>
class DiagonalMap final : public AffineMap {
 public:
  DiagonalMap(const T* factors, int64_t rows, int64_t width, Dtype dtype) : factors_(factors), rows_(rows), width_(width), dtype_(dtype) {}

  Dtype dtype() const override { return dtype_; }
  int64_t count() const override { return rows_ * width_; }
  int64_t unit() const override { return width_; }
  void add_product(void* s, const void* x, int64_t begin, int64_t end) const override {
    T* to = static_cast<T*>(s);
    const T* from = static_cast<const T*>(x);
    for (int64_t row = begin / width_; row < end / width_; ++row, to += width_, from += width_) {
      const T factor = factors_[row];
      if (factor == 0) continue;  // a state that is forgotten may hold anything, inf too
      for (int64_t i = 0; i < width_; ++i) to[i] += factor * from[i];
    }
  }

 private:
  const T* factors_;
  int64_t rows_, width_;
  Dtype dtype_;
};

template <typename T>
class MatrixMap final : public AffineMap {
 public:
  MatrixMap(const T* factors, int64_t matrices, int64_t size, int64_t width, Dtype dtype)
      : factors_(factors), matrices_(matrices), size_(size), width_(width), dtype_(dtype) {}

  Dtype dtype() const override { return dtype_; }
  int64_t count() const override { return matrices_ * unit(); }
  int64_t unit() const override { return size_ * width_; }
  void add_product(void* s, const void* x, int64_t begin, int64_t end) const override {
    T* to = static_cast<T*>(s);
    const T* from = static_cast<const T*>(x);
    for (int64_t matrix = begin / unit(); matrix < end / unit(); ++matrix, to += unit(), from += unit()) {
      const T* factor = factors_ + matrix * size_ * size_;
      for (int64_t i = 0; i < size_; ++i)
        for (int64_t k = 0; k < size_; ++k)
          for (int64_t j = 0; j < width_; ++j) to[i * width_ + j] += factor[i * size_ + k] * from[k * width_ + j];
    }
  }

 private:
  const T* factors_;
  int64_t matrices_, size_, width_;
  Dtype dtype_;
};

void check_dtype(Dtype dtype) {
  CAIRN_CHECK(dtype == Dtype::f32 || dtype == Dtype::f64, "a state of {}: states are f32 or f64, since rounding grows along the ranks",
              name(dtype));
}

}  // namespace

std::shared_ptr<const AffineMap> make_diagonal_map(const void* factors, int64_t rows, int64_t width, Dtype dtype) {
  check_dtype(dtype);
  if (dtype == Dtype::f64) return std::make_shared<DiagonalMap<double>>(static_cast<const double*>(factors), rows, width, dtype);
  return std::make_shared<DiagonalMap<float>>(static_cast<const float*>(factors), rows, width, dtype);
}

std::shared_ptr<const AffineMap> make_matrix_map(const void* factors, int64_t matrices, int64_t size, int64_t width, Dtype dtype) {
  check_dtype(dtype);
  if (dtype == Dtype::f64) return std::make_shared<MatrixMap<double>>(static_cast<const double*>(factors), matrices, size, width, dtype);
  return std::make_shared<MatrixMap<float>>(static_cast<const float*>(factors), matrices, size, width, dtype);
}

}  // namespace cairn::comm
