#include "train/learning_rate.h"

#include "train/build/batches.h"
#include "train/job.h"

namespace cairn::train {
namespace {

// The first step from `step` on whose end lies behind the warm-up.
int64_t end_of_warmup(const Job& job, int64_t step, int64_t last) {
  while (step < last) {
    const int64_t middle = step + (last - step) / 2;
    job.batches->progress(batch_index(job, middle + 1)) < job.schedule.warmup ? step = middle + 1 : last = middle;
  }
  return step;
}

}  // namespace

double learning_rate_of(const Job& job, int64_t step, double factor) {
  const double progress = job.batches->progress(batch_index(job, step + 1)), rate = job.schedule.learning_rate(progress);
  if (progress >= job.schedule.warmup || !data::sampler_needs(job.config.settings.data.sampler).clips) return rate * factor;
  return rate * job.sampler->draw(batch_index(job, end_of_warmup(job, step, last_step(job))).batch()).learning_rate_factor;
}

}  // namespace cairn::train
