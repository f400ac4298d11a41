#pragma once
#include <cstdint>
#include <memory>

#include "comm/dtype.h"

namespace cairn::comm {

// What a rank does to a state that passes through it: x -> A x + s. Maps of neighbouring ranks compose to a map of the same kind,
// (A2, s2) o (A1, s1) = (A2 A1, A2 s1 + s2), so a chain of them is a scan (Group::all_scan). This class is A; s is the rank's own state.
class AffineMap {
 public:
  virtual ~AffineMap() = default;
  virtual Dtype dtype() const = 0;
  virtual int64_t count() const = 0;  // elements of a state
  // A state may be cut at multiples of this many elements: what A reads and writes stays within one such unit.
  virtual int64_t unit() const = 0;
  // s += A x on the elements [begin, end), which are whole units. Both pointers are to element `begin`.
  virtual void add_product(void* s, const void* x, int64_t begin, int64_t end) const = 0;
};

// A is diagonal and constant along a row: s[row, :] += factors[row] x[row, :]. States are [rows, width] of f32 or f64; gated linear
// attention has a row for each head and key dim. `factors` ([rows], of that dtype) is borrowed until the last operation on the map is done.
std::shared_ptr<const AffineMap> make_diagonal_map(const void* factors, int64_t rows, int64_t width, Dtype dtype);

// A is block diagonal: s[m] += factors[m] x[m] with a matrix product, factors [matrices, size, size], states [matrices, size, width], both
// row-major. Delta-rule models have such transitions. Borrowed like those above.
std::shared_ptr<const AffineMap> make_matrix_map(const void* factors, int64_t matrices, int64_t size, int64_t width, Dtype dtype);

}  // namespace cairn::comm
