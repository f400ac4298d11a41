// The seam between what is stored and what a step reads: samples by id.
#pragma once
#include <cstdint>
#include <span>

#include "mesh/batch.h"

namespace cairn::data {

// Sample ids first .. first + count - 1.
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

// Samples known by id, the same on every rank. Immutable, so a loader's thread may read while training goes on.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual SampleRange training() const = 0;
  virtual SampleRange held_out() const = 0;
  // Targets counted in one sample (tokens of a text, 1 for a labelled example): every rank can tell the global count without asking.
  virtual int64_t tokens_in(int64_t sample) const = 0;
  // Sets ids and fields on the CPU; all samples weigh 1. No ids: an empty batch.
  virtual void fill(std::span<const int64_t> ids, mesh::Batch& batch) const = 0;
};

}  // namespace cairn::data
