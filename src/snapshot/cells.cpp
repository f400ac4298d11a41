#include "snapshot/cells.h"

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"

namespace cairn::snapshot {
namespace {

constexpr int64_t kGroupBytes = 16 << 20;

int64_t elements_from(const std::vector<int64_t>& shape, size_t dim) {
  int64_t elements = 1;
  for (size_t d = dim; d < shape.size(); ++d) elements *= shape[d];
  return elements;
}

// Appends the cells of one box. `dense` is the tensor as it lies in the file.
void add_cells(const mesh::Box& box, const mesh::FragmentBox& fragment, const mesh::FragmentBox& dense, int64_t element_bytes,
               int64_t begin, std::vector<CellSource>& cells) {
  const size_t dims = box.dims.size();
  int64_t run = 1;
  size_t inner = dims;  // dims from here on are one run in the file
  while (inner > 0 && dense.strides[inner - 1] == run) run *= box.dims[--inner].length();
  if (inner == 0) {
    cells.push_back({{begin + mesh::start_of(box, dense) * element_bytes, 1, run * element_bytes, 0, 0}, box, fragment});
    return;
  }
  if (inner == 1) {
    const int64_t rows = box.dims[0].length();
    cells.push_back({{begin + mesh::start_of(box, dense) * element_bytes, rows, run * element_bytes,
                      rows == 1 ? 0 : dense.strides[0] * element_bytes, 0},
                     box,
                     fragment});
    return;
  }
  // Several dims jump: one cell for each index of the first.
  for (int64_t i = box.dims[0].begin; i < box.dims[0].end; ++i) {
    mesh::Box slice = box;
    slice.dims[0] = {i, i + 1};
    if (inner == 2) {
      const int64_t rows = box.dims[1].length();
      cells.push_back({{begin + mesh::start_of(slice, dense) * element_bytes, rows, run * element_bytes,
                        rows == 1 ? 0 : dense.strides[1] * element_bytes, 0},
                       slice,
                       fragment});
      continue;
    }
    for (int64_t j = box.dims[1].begin; j < box.dims[1].end; ++j) {  // more than that no model has: a cell for each run
      mesh::Box line = slice;
      line.dims[1] = {j, j + 1};
      for (const mesh::CopyRun& one : mesh::runs_between(line, dense, dense))
        cells.push_back({{begin + one.from * element_bytes, 1, one.elements * element_bytes, 0, 0}, line, fragment});
    }
  }
}

}  // namespace

std::vector<mesh::Interval> row_groups(const std::vector<int64_t>& shape, int64_t element_bytes) {
  if (shape.empty()) return {};
  const int64_t row_bytes = std::max<int64_t>(1, elements_from(shape, 1) * element_bytes),
                rows = std::max<int64_t>(1, kGroupBytes / row_bytes);
  std::vector<mesh::Interval> groups;
  for (int64_t at = 0; at < shape[0]; at += rows) groups.push_back({at, std::min(shape[0], at + rows)});
  return groups;
}

std::vector<CellSource> cells_of(const std::vector<mesh::FragmentBox>& fragment, const std::vector<int64_t>& shape, int64_t element_bytes,
                                 int64_t begin) {
  const mesh::FragmentBox dense = mesh::dense(shape);
  std::vector<CellSource> cells;
  for (const mesh::FragmentBox& one : fragment) {
    if (shape.empty()) add_cells(one.box, one, dense, element_bytes, begin, cells);
    for (const mesh::Interval& rows : row_groups(shape, element_bytes)) {
      mesh::Box part = one.box;
      part.dims[0] = {std::max(rows.begin, part.dims[0].begin), std::min(rows.end, part.dims[0].end)};
      if (part.dims[0].length() > 0) add_cells(part, one, dense, element_bytes, begin, cells);
    }
  }
  return cells;
}

std::vector<CellUnit> cell_units(std::vector<Cell> cells, int64_t file_bytes, const std::string& path) {
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return a.offset < b.offset; });
  std::vector<CellUnit> units;
  int64_t covered = 0;  // bytes of the cells so far
  for (const Cell& cell : cells) {
    const bool sound =
        cell.offset >= 0 && cell.rows >= 1 && cell.row_bytes >= 1 && cell.rows <= file_bytes && cell.row_bytes <= file_bytes &&
        (cell.rows == 1 || (cell.stride >= cell.row_bytes && cell.stride <= file_bytes / (cell.rows - 1))) && cell.end() <= file_bytes;
    if (!sound) base::fail_corrupt(path, fmt::format("a cell at {} that is not inside the file", cell.offset));
    if (units.empty() || covered == units.back().end) {
      if (cell.offset != covered) base::fail_corrupt(path, fmt::format("bytes {} to {} are in no cell", covered, cell.offset));
      units.push_back({cell.offset, cell.offset, {}});
    }
    units.back().end = std::max(units.back().end, cell.end());
    units.back().cells.push_back(cell);
    covered += cell.bytes();
    if (covered > units.back().end) base::fail_corrupt(path, fmt::format("bytes before {} are in two cells", units.back().end));
  }
  if (covered != file_bytes) base::fail_corrupt(path, fmt::format("cells cover {} of {} bytes", covered, file_bytes));
  return units;
}

uint64_t checksum_of(const Cell& cell, std::span<const std::byte> bytes, int64_t begin) {
  base::Checksum sum;
  for (int64_t row = 0; row < cell.rows; ++row)
    sum.add(bytes.subspan(static_cast<size_t>(cell.offset + row * cell.stride - begin), static_cast<size_t>(cell.row_bytes)));
  return sum.value();
}

const Cell* damaged_cell(const CellUnit& unit, std::span<const std::byte> bytes) {
  for (const Cell& cell : unit.cells)
    if (checksum_of(cell, bytes, unit.begin) != cell.checksum) return &cell;
  return nullptr;
}

std::vector<Cell> damaged_cells(const std::vector<Cell>& cells, std::span<const std::byte> file, const std::string& path) {
  std::vector<Cell> damaged;
  for (const CellUnit& unit : cell_units(cells, static_cast<int64_t>(file.size()), path))
    for (const Cell& cell : unit.cells)
      if (checksum_of(cell, file, 0) != cell.checksum) damaged.push_back(cell);
  return damaged;
}

}  // namespace cairn::snapshot
