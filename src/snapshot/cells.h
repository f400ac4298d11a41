// Checksums of parts of a file. Several ranks write one file and none has all of it, so each vouches for the cells that it has written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "mesh/fragment.h"

namespace cairn::snapshot {

// `rows` runs of `row_bytes` bytes each, `stride` bytes apart: a part of some rows of a matrix. The checksum is of the runs, in order.
struct Cell {
  int64_t offset = 0;  // of the first run, in the file
  int64_t rows = 1;
  int64_t row_bytes = 0;
  int64_t stride = 0;     // 0 where there is one run
  uint64_t checksum = 0;  // xxh3-64
  int64_t bytes() const { return rows * row_bytes; }
  int64_t end() const { return offset + (rows - 1) * stride + row_bytes; }
  bool operator==(const Cell&) const = default;
};

// Rows (along the first dim) of a tensor that are written and read together: about 16 MiB. A function of the tensor alone, so that writers
// in different layouts cut it in the same way.
std::vector<mesh::Interval> row_groups(const std::vector<int64_t>& shape, int64_t element_bytes);

// A cell of a tensor in a file, and what goes into it.
struct CellSource {
  Cell cell;                   // without its checksum
  mesh::Box box;               // of the logical tensor
  mesh::FragmentBox fragment;  // the memory that has it
};

// Cuts what a fragment has of a tensor, which begins at `begin` in the file, into cells: at the borders of row groups, and so that the
// bytes of each are runs of equal length and distance.
std::vector<CellSource> cells_of(const std::vector<mesh::FragmentBox>& fragment, const std::vector<int64_t>& shape, int64_t element_bytes,
                                 int64_t begin);

// A range of a file that holds whole cells.
struct CellUnit {
  int64_t begin = 0, end = 0;
  std::vector<Cell> cells;
};

// Sorts cells into the smallest ranges that hold whole cells and nothing else. They must cover [0, file_bytes) exactly once, else
// corrupt_file with `path`.
std::vector<CellUnit> cell_units(std::vector<Cell> cells, int64_t file_bytes, const std::string& path);

// The first cell of a unit whose bytes have another checksum; null if all are right. `bytes`: those of the unit.
const Cell* damaged_cell(const CellUnit& unit, std::span<const std::byte> bytes);

// The cells of a whole file whose bytes have another checksum.
std::vector<Cell> damaged_cells(const std::vector<Cell>& cells, std::span<const std::byte> file, const std::string& path);

// The checksum of the runs of a cell within `bytes`, which begin at `begin` of the file.
uint64_t checksum_of(const Cell& cell, std::span<const std::byte> bytes, int64_t begin);

}  // namespace cairn::snapshot
