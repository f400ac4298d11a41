// Vectors by number, in memory or in files, as k-means and nearest-neighbour search read them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::data {

// Immutable. read() may be called from several threads.
class RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t dim() const = 0;
  // Rows first .. first + count - 1 as contiguous fp32 [count, dim] on the CPU.
  virtual at::Tensor read(int64_t first, int64_t count) const = 0;
};

// fp32 or fp16 [rows, dim] on the CPU.
std::unique_ptr<RowSource> rows_in_memory(const at::Tensor& rows);
// These rows of another source, in this order. `of` is borrowed.
std::unique_ptr<RowSource> chosen_rows(const RowSource& of, std::vector<int64_t> numbers);

// The rows that one rank works on, and how ranks add up what they found.
struct RowShare {
  int64_t first = 0;
  int64_t count = -1;                                     // -1: all rows
  std::function<void(std::span<double>)> add_ranks = {};  // replaces numbers by their sums over all ranks; empty: one rank
};
// Rank `rank` of `ranks` has one of equal contiguous parts of the rows; later parts may be shorter or empty.
RowShare share_of_rank(int64_t rows, int rank, int ranks);

// The scalar product in double precision, in an order that is the same on every machine. All searches return this value, rounded once, so
// that no result depends on tiles, threads or ranks.
float scalar_product(const float* a, const float* b, int64_t dim);
// The squared distance, likewise.
float squared_distance(const float* a, const float* b, int64_t dim);

// How far a product in fp32, summed in any order, may be off, for vectors of length 1.
inline float product_error(int64_t dim) { return static_cast<float>(dim + 4) * 0x1p-23f; }

}  // namespace cairn::data
