#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::comm {
class Group;
}

namespace cairn::train {

struct Job;

// Brings vectors back to length 1, and values that became negative to 0, after the optimizer has moved them. Vectors are rows of
// parameters, however these are sharded: the ranks that share a replica's parameters sum the squares of their parts in one all-reduce.
class UnitVectors {
 public:
  // By index in the model. Collective.
  UnitVectors(Job& job, const std::vector<size_t>& matrices, const std::vector<size_t>& values);
  void project() const;

 private:
  // This rank's part of one matrix.
  struct Part {
    at::Tensor flat;
    int64_t begin = 0, width = 1;  // in the rank's rows, of `width` elements
    int64_t row = 0;               // of its first row among the rows of all matrices
    double weight = 1;             // of its squares, where several ranks have the same part
  };
  std::vector<Part> parts_;
  std::vector<at::Tensor> values_;
  int64_t rows_ = 0;
  at::TensorOptions options_;
  comm::Group* group_ = nullptr;  // null: this rank has whole vectors
};

}  // namespace cairn::train
