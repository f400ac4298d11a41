// What linear layers read, summed over the calibration samples while the layers run.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "model/decoder/weight_form.h"

namespace cairn::comm {
class Group;
}

namespace cairn::study {

// Statistics by weight. Weights that read the same input share theirs.
class InputStatistics {
 public:
  enum class Kind { squares, products };  // of each input (wanda), or of each pair of inputs (sparsegpt)
  explicit InputStatistics(Kind kind) : kind_(kind) {}

  void see(const std::string& weight, const at::Tensor& x /*[rows, in]*/);
  // After the last call of see(): sums over the ranks of a group.
  void reduce(comm::Group& group);
  // The mean over rows: of x_i^2 [in], or of 2 x_i x_j [in, in]; fp32.
  at::Tensor mean(const std::string& weight) const;

 private:
  struct Sum {
    at::Tensor sum;  // fp32
    double rows = 0;
  };
  Kind kind_;
  std::map<std::string, std::shared_ptr<Sum>> sums_;
  std::map<std::string, std::string> shares_;  // by weight: the weight that counts for it
  std::string last_;
  at::Tensor last_input_;
};

// Plain weights that report what they are multiplied by to `into`, which must outlive the model, while `into` is not null.
std::shared_ptr<const model::WeightFormRule> make_observing_rule(InputStatistics*& into);

}  // namespace cairn::study
