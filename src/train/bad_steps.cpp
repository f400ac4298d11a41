// The rule that finds bad steps. For x in {loss, gradient norm} and the last kWindow good steps H:
//
//   bad   if x is not finite
//   bad   if x > train.spike_factor * median of x over H      (spike_factor > 0, at least kLeast steps in H, a median above 0)
//   good  otherwise; then x joins H, a ring buffer
//
// With train.on_bad_step = stop, the recorder judges a step after its update, when the numbers reach the host. With skip and rollback,
// ranks sum the loss and judge before the update, which makes the host wait for the device. All ranks judge the same reduced numbers, so
// they reach the same decision. The run stops after train.bad_steps_max skipped steps in a row, or that many rollbacks.
#include "train/bad_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "train/options.h"

namespace cairn::train {

BadSteps::BadSteps(comm::Group& everyone, const TrainOptions& options, double learning_rate)
    : everyone_(everyone),
      policy_(options.on_bad_step),
      spike_factor_(options.spike_factor),
      learning_rate_(learning_rate),
      bad_steps_max_(options.bad_steps_max),
      history_(at::zeros({kWindow, 2}, at::kDouble)),
      good_(at::zeros({1}, at::kLong)) {}

bool BadSteps::before_update() const { return policy_ != OnBadStep::stop; }

bool BadSteps::approve(int64_t loss_denominator, const at::Tensor& loss_sum, const at::Tensor& gradient_norm) {
  // The norm is the same on all ranks already. It is reduced too, so that all ranks decide by bitwise identical numbers.
  std::array<double, 2> sums{loss_sum.item<double>(), gradient_norm.item<double>() / everyone_.size()};
  everyone_.all_reduce({sums.data(), 2, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::loss, "loss before the update"}).wait_host();
  judge(sums[0] / static_cast<double>(loss_denominator), sums[1]);
  if (fault_.empty()) in_a_row_ = 0;
  return fault_.empty();
}

void BadSteps::must_be_good(int64_t step, double loss, double gradient_norm) {
  judge(loss, gradient_norm);
  if (!fault_.empty()) fail(fmt::format("step {}: {}", step, fault_));
}

void BadSteps::parameters_must_be_finite(int64_t step, const std::string& not_finite) {
  double ranks = not_finite.empty() ? 0 : 1;
  everyone_.all_reduce({&ranks, 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::loss, "finite parameters"}).wait_host();
  if (ranks > 0)
    fail(fmt::format("step {}: {} after the update, and are not saved", step,
                     not_finite.empty() ? "parameters of another rank are not finite" : not_finite + ": values are not finite"));
}

void BadSteps::skipped(int64_t step) {
  if (++in_a_row_ >= bad_steps_max_)
    fail(fmt::format("step {}: {}, the last of {} bad steps in a row (train.bad_steps_max)", step, fault_, in_a_row_));
}

void BadSteps::may_roll_back(int64_t step, int64_t rollbacks) const {
  if (rollbacks >= bad_steps_max_) fail(fmt::format("step {}: {}, after {} rollbacks (train.bad_steps_max)", step, fault_, rollbacks));
}

mesh::NamedTensors BadSteps::state() {
  if (spike_factor_ == 0) return {};
  return {{"history", history_}, {"good", good_}};
}

// Sets fault_ for a bad step. A good step joins the history.
void BadSteps::judge(double loss, double gradient_norm) {
  fault_.clear();
  const double numbers[] = {loss, gradient_norm};
  const char* const names[] = {"loss", "gradient norm"};
  int64_t& good = *good_.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < 2 && fault_.empty(); ++i) {
    if (!std::isfinite(numbers[i])) {
      fault_ = fmt::format("the {} became {}", names[i], numbers[i]);
    } else if (spike_factor_ > 0 && good >= kLeast) {
      const double usual = median(i);
      if (usual > 0 && numbers[i] > spike_factor_ * usual)
        fault_ = fmt::format("the {} {:.6g} is more than train.spike_factor = {} times {:.6g}, its median over the last {} good steps",
                             names[i], numbers[i], spike_factor_, usual, std::min(good, kWindow));
    }
  }
  if (!fault_.empty()) return;
  double* row = history_.mutable_data_ptr<double>() + 2 * (good++ % kWindow);
  row[0] = loss;
  row[1] = gradient_norm;
}

double BadSteps::median(int64_t column) const {
  const int64_t count = std::min(*good_.const_data_ptr<int64_t>(), kWindow);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(history_.const_data_ptr<double>()[2 * i + column]);
  const auto middle = values.begin() + count / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void BadSteps::fail(const std::string& what) const {
  const char* other = policy_ == OnBadStep::stop ? ", or set train.on_bad_step to skip or rollback" : "";
  throw Error(Error::Kind::diverged,
              fmt::format("{}: lower optim.learning_rate = {} (or raise optim.warmup_steps){}, then continue from the last "
                          "snapshot with --resume auto",
                          what, learning_rate_, other));
}

}  // namespace cairn::train
