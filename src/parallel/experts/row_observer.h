#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mesh/ragged.h"

namespace cairn::parallel {

// Sees the rows of passes with gradients, and may change who holds an expert before they leave.
class RowObserver {
 public:
  virtual ~RowObserver() = default;
  // Rows of this rank for each expert of a block.
  virtual void leaving(std::string_view block, const std::vector<int64_t>& rows) = 0;
  // Rows of all ranks along ep, [source][expert], before any of them leaves. Returns the holders by which they go. The answer is the same
  // on all ranks along ep, and Weights::get of the block's experts follows it.
  virtual mesh::Ragged calibrate(std::string_view block, std::span<const int64_t> rows) = 0;
  // Rows that this rank's experts compute.
  virtual void arriving(std::string_view block, int64_t rows) = 0;
};

}  // namespace cairn::parallel
