#include "train/evaluate.h"

#include <array>
#include <limits>
#include <numeric>

#include "comm/group.h"
#include "data/shard.h"
#include "kernels/aten.h"
#include "parallel/pass.h"
#include "train/build.h"

namespace cairn::train {

double held_out_loss(Job& job) {
  const data::Samples held = job.data.samples->held_out();
  const int64_t count = std::min(held.count, job.settings.eval.samples);
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  const auto traced = job.trace->span("evaluate", "evaluate");
  const data::Share share = data::share_of(count, job.replicas->rank(), job.replicas->size());
  std::array<double, 2> sums{0, 0};  // loss, tokens
  for (const data::Share& part : data::micro_batches(share.count, job.engine.micro_batch)) {
    std::vector<int64_t> ids(static_cast<size_t>(part.count));
    std::iota(ids.begin(), ids.end(), held.first + share.first + part.first);
    mesh::Batch batch;
    job.data.samples->fill(ids, batch);
    batch = mesh::to_device(batch, job.device);
    const model::Losses losses = parallel::execute(pass_over(job.engine, batch));
    sums[0] += losses.sum.item<double>();
    sums[1] += losses.count.to(at::kDouble).item<double>();
  }
  job.replicas->all_reduce({sums.data(), 2, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::loss, "held-out loss"}).wait_host();
  return sums[0] / sums[1];
}

}  // namespace cairn::train
