// The leading blocks of a model that have no trained parameter: nothing below them has a gradient, and what they compute for a sample is
// the same in every epoch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/values.h"

namespace cairn::model {

class Model;

// How long that beginning is, and a cache of its outputs by sample id, in host memory. For one thread.
class FrozenPrefix {
 public:
  // `trained`: by parameter. A block with an adapter does not count, because its dropout differs from step to step. Samples beyond
  // `bytes_max` are not kept.
  FrozenPrefix(const Model& model, const std::vector<bool>& trained, int64_t bytes_max);

  size_t blocks() const { return blocks_; }
  // Puts the outputs for these samples (int64 [samples]) into `values`, on that device. False: not all of them are kept, and nothing is
  // put.
  bool restore(const at::Tensor& ids, const at::Device& device, Values& values);
  // Copies the outputs for these samples, which the blocks have just computed.
  void keep(const at::Tensor& ids, Values& values);

  int64_t bytes() const { return bytes_; }
  int64_t restored() const { return restored_; }  // samples, in all

 private:
  std::vector<int64_t> ids_of(const at::Tensor& ids) const;

  size_t blocks_ = 0;
  std::vector<std::string> outputs_;  // values that later blocks read
  int64_t bytes_max_, bytes_ = 0, restored_ = 0;
  std::unordered_map<int64_t, std::vector<at::Tensor>> kept_;  // of each sample: one tensor for each output
};

}  // namespace cairn::model
