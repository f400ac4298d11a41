// The seam between stored data and batches: samples by id.
#pragma once
#include <cstdint>
#include <span>

#include "data/sample_shape.h"
#include "mesh/batch.h"

namespace cairn::data {

// Sample ids first .. first + count - 1.
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

// Samples with stable ids, the same on every rank. Immutable and thread-safe: a loader's thread reads while training runs.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual SampleRange training() const = 0;
  virtual SampleRange held_out() const = 0;
  // The targets in one sample (tokens of a text, 1 for a labelled example). Every rank can compute the global count without communication.
  virtual int64_t tokens_in(int64_t sample) const = 0;
  // The positions of one sample where samples have lengths of their own; 0: all are of one length. Batches of such samples have ragged
  // fields and a field `lengths`.
  virtual int64_t length_of(int64_t /*sample*/) const { return 0; }
  // Sets `ids` and `fields` of the batch, on the CPU; weights stay undefined (all 1). No ids: an empty batch.
  virtual void fill(std::span<const int64_t> ids, mesh::Batch& batch) const = 0;
  // The same with samples of another shape than their own, where the data set can (clips). `step` keys what is drawn at random.
  virtual void fill_shaped(std::span<const int64_t> ids, const SampleShape& /*shape*/, int64_t /*step*/, mesh::Batch& batch) const {
    fill(ids, batch);
  }
  // What fill gives, changed as a training sample may be (pictures that are moved and mirrored). `batch_index` keys what is drawn at random.
  virtual void fill_training(std::span<const int64_t> ids, int64_t /*batch_index*/, mesh::Batch& batch) const { fill(ids, batch); }
  // The class of a sample, from 0; -1: samples have none.
  virtual int64_t label_of(int64_t /*sample*/) const { return -1; }
};

}  // namespace cairn::data
