// Surgery: changes of parameters between two steps, in which everything that belongs to their elements takes part: moments, counts of
// updates, and what sync rules keep (anchors, outer momentum). Plain data; train/state/surgery.h applies it to a run, however it is
// sharded.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/box.h"

namespace cairn::optim {

// In the place of a source: a new row, which is zero.
inline constexpr int64_t kNewRow = -1;

// Moves the rows of one tensor, or of several that are joined along a dim: permutations, swaps between tensors, insertions and deletions.
// Shapes stay as they are. Tensors that are not trained may be among them; their rows have no moments, so those that leave them begin at
// zero, and moments of rows that go there are dropped.
struct Rearrangement {
  std::vector<std::string> tensors;  // parameters, or running buffers of the model; equal shapes, except along `dim`
  int64_t dim = 0;
  std::vector<int64_t> from;  // by row of the result: the row of what was there, or kNewRow
  // False: the moments of all of these parameters become zero, and they count their updates from here.
  bool keeps_moments = true;
};

// Zeroes the moments of a parameter, and begins to count its updates again. With boxes: of these elements alone. The count of a parameter
// then stays, unless its elements are tracked (ActiveSet::track_elements).
struct ZeroMoments {
  std::string parameter;
  std::vector<mesh::Box> boxes = {};
};

// New values of a whole parameter, the same on every rank. Moments stay unless they are zeroed too.
struct NewValues {
  std::string parameter;
  at::Tensor whole;
};

using SurgeryStep = std::variant<Rearrangement, ZeroMoments, NewValues>;
// In this order.
using Surgery = std::vector<SurgeryStep>;

// Row i becomes row order[i] of what was there.
Rearrangement permutation(std::string tensor, int64_t dim, std::vector<int64_t> order);
// Row a of `first` and row b of `second` change places. Sizes are those along `dim`.
Rearrangement swap_rows(std::string first, int64_t first_size, int64_t a, std::string second, int64_t second_size, int64_t b,
                        int64_t dim = 0);
// `count` rows of zeros come in at `at`; those from there on move back, and the last ones fall out.
Rearrangement insertion(std::string tensor, int64_t dim, int64_t size, int64_t at, int64_t count);
// These rows go (in any order); those behind them move up, and rows of zeros take the end.
Rearrangement deletion(std::string tensor, int64_t dim, int64_t size, std::vector<int64_t> rows);

// Applies a rearrangement to whole tensors, given in its order; new ones, of the same shapes. Refuses shapes that do not fit.
std::vector<at::Tensor> rearranged(const Rearrangement& change, const std::vector<at::Tensor>& whole);

}  // namespace cairn::optim
