// Grouped products: which kernel computes one, and those on the CPU. There the tiles of all groups are one list of tasks: a thread that is
// done takes the next tile, whichever group it belongs to, and multiplies it with one serial call of the BLAS inside libtorch. So many
// small groups keep all threads busy, where one product after the other would start and end a parallel region for each.
#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sgemm.h"
#include "kernels/gemm/grouped_cuda.h"
#include "kernels/grouped_gemm.h"
#include "kernels/low_precision.h"
#include "kernels/matvec.h"

namespace cairn::kernels {
namespace {

constexpr int64_t kFewRows = 4;           // up to so many rows of a group read the weight once, in place
constexpr int64_t kProductRows = 192;     // of a product of many rows, at least: enough to pay for packing the weight again
constexpr int64_t kFewRowsOutputs = 256;  // outputs of a task of few rows
constexpr int64_t kTileOutputs = 128;     // rows of a weight gradient that are a task, at least
constexpr int64_t kTasksPerThread = 4;    // together: a large product is faster than its parts, but threads should end together

// A part of one group's product: rows [begin, begin + count) and outputs [first, first + outputs).
struct GroupTile {
  int64_t group = 0, begin = 0, count = 0, first = 0, outputs = 0;
};

struct GroupRows {
  int64_t group, begin, count;
};

std::vector<GroupRows> rows_of_groups(const RowGroups& groups, int64_t rows) {
  CAIRN_CHECK(groups.rows() == rows, "{} rows in groups that have {} together", rows, groups.rows());
  std::vector<GroupRows> all;
  int64_t begin = 0;
  for (int64_t g = 0; g < groups.size(); ++g) {
    all.push_back({g, begin, groups.host()[static_cast<size_t>(g)]});
    begin += all.back().count;
  }
  return all;
}

// Into how many tasks a group of `count` rows of `all` is cut, at most `most`.
int64_t pieces_of(int64_t count, int64_t all, int64_t most) {
  const int64_t wanted = kTasksPerThread * at::get_num_threads();
  return std::clamp<int64_t>((wanted * count + all / 2) / all, 1, std::max<int64_t>(most, 1));
}

// Rows in equal tiles; a group of few rows in ranges of outputs.
std::vector<GroupTile> row_tiles(const RowGroups& groups, int64_t rows, int64_t outputs) {
  std::vector<GroupTile> tiles;
  for (const GroupRows& one : rows_of_groups(groups, rows)) {
    if (one.count == 0) continue;
    if (one.count <= kFewRows) {
      for (int64_t first = 0; first < outputs; first += kFewRowsOutputs)
        tiles.push_back({one.group, one.begin, one.count, first, std::min(kFewRowsOutputs, outputs - first)});
      continue;
    }
    const int64_t pieces = pieces_of(one.count, rows, one.count / kProductRows);
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t from = one.count * i / pieces, to = one.count * (i + 1) / pieces;
      tiles.push_back({one.group, one.begin + from, to - from, 0, outputs});
    }
  }
  return tiles;
}

bool has_fast_form(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  const auto fits = [](const at::Tensor& one) { return one.size(0) == 0 || fits_sgemm(one); };
  return find_sgemm() != nullptr && is_cpu_float(w) && w.is_contiguous() && w.numel() > 0 && is_cpu_float(x) && is_cpu_float(y) &&
         fits(x) && fits(y) && w.size(1) < std::numeric_limits<int>::max() && w.size(2) < std::numeric_limits<int>::max();
}

void check_grouped(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RowGroups& groups) {
  CAIRN_CHECK(y.dim() == 2 && x.dim() == 2 && w.dim() == 3 && y.size(0) == x.size(0) && x.size(1) == w.size(2) && y.size(1) == w.size(1) &&
                  w.size(0) == groups.size(),
              "a grouped product of weights {} in {} groups, from {} to {}", c10::str(w.sizes()), groups.size(), c10::str(x.sizes()),
              c10::str(y.sizes()));
}

// y = x w^T of one tile where `transposed`, else y = x w: the same weight [out, in] read the other way.
void multiply_tile(const GroupTile& tile, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, bool forward) {
  const int64_t out = w.size(1), in = w.size(2);
  const float* const weight = w.const_data_ptr<float>() + tile.group * out * in;
  const float* const from = x.const_data_ptr<float>() + tile.begin * x.stride(0);
  float* const to = y.mutable_data_ptr<float>() + tile.begin * y.stride(0);
  if (tile.count <= kFewRows) {
    const WeightView view{.data = weight, .out = forward ? out : in, .in = forward ? in : out, .fan_in_fan_out = !forward};
    return matvec(to, y.stride(0), from, x.stride(0), tile.count, view, tile.first, tile.first + tile.outputs);
  }
  const int rows = static_cast<int>(tile.count), outputs = static_cast<int>(forward ? out : in),
            inner = static_cast<int>(forward ? in : out);
  const int ldw = static_cast<int>(in), ldx = static_cast<int>(x.stride(0)), ldy = static_cast<int>(y.stride(0));
  const float one = 1, none = 0;
  find_sgemm()(forward ? "T" : "N", "N", &outputs, &rows, &inner, &one, weight, &ldw, from, &ldx, &none, to, &ldy);
}

void multiply_tiles(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RowGroups& groups, bool forward) {
  const std::vector<GroupTile> tiles = row_tiles(groups, x.size(0), y.size(1));
  parallel_tasks(static_cast<int64_t>(tiles.size()),
                 [&](int64_t task, int) { multiply_tile(tiles[static_cast<size_t>(task)], y, x, w, forward); });
}

}  // namespace

void grouped_linear(const at::Tensor& y, const at::Tensor& x, const at::Tensor& w, const RowGroups& groups) {
  check_grouped(y, x, w, groups);
  if (x.is_cuda() && grouped_linear_on_cuda(y, x, w, groups)) return;
  if (!has_fast_form(y, x, w)) return reference::grouped_linear(y, x, w, groups);
  multiply_tiles(y, x, w, groups, /*forward=*/true);
}

void grouped_linear_backward_input(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w, const RowGroups& groups) {
  check_grouped(dy, dx, w, groups);
  if (dy.is_cuda() && grouped_linear_backward_input_on_cuda(dx, dy, w, groups)) return;
  if (!has_fast_form(dx, dy, w)) return reference::grouped_linear_backward_input(dx, dy, w, groups);
  multiply_tiles(dx, dy, w, groups, /*forward=*/false);
}

void grouped_linear_backward_weight(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const RowGroups& groups,
                                    bool accumulate) {
  check_grouped(dy, x, dw, groups);
  if (x.is_cuda() && grouped_linear_backward_weight_on_cuda(dw, dy, x, groups, accumulate)) return;
  if (!has_fast_form(dy, x, dw)) return reference::grouped_linear_backward_weight(dw, dy, x, groups, accumulate);
  std::vector<GroupTile> tiles;
  for (const GroupRows& one : rows_of_groups(groups, x.size(0))) {
    if (one.count == 0 && accumulate) continue;
    const int64_t pieces = pieces_of(one.count, std::max<int64_t>(x.size(0), 1), dw.size(1) / kTileOutputs);
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t from = dw.size(1) * i / pieces, to = dw.size(1) * (i + 1) / pieces;
      tiles.push_back({one.group, one.begin, one.count, from, to - from});
    }
  }
  const int ldx = static_cast<int>(x.stride(0)), ldy = static_cast<int>(dy.stride(0)), in = static_cast<int>(dw.size(2));
  parallel_tasks(static_cast<int64_t>(tiles.size()), [&](int64_t task, int) {
    const GroupTile& tile = tiles[static_cast<size_t>(task)];
    float* const to = dw.mutable_data_ptr<float>() + (tile.group * dw.size(1) + tile.first) * dw.size(2);
    if (tile.count == 0) return std::fill_n(to, tile.outputs * dw.size(2), 0.0F), void();
    const int rows = static_cast<int>(tile.count), outputs = static_cast<int>(tile.outputs);
    const float one = 1, keep = accumulate ? 1 : 0;
    find_sgemm()("N", "T", &in, &outputs, &rows, &one, x.const_data_ptr<float>() + tile.begin * x.stride(0), &ldx,
                 dy.const_data_ptr<float>() + tile.begin * dy.stride(0) + tile.first, &ldy, &keep, to, &in);
  });
}

}  // namespace cairn::kernels
