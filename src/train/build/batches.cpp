#include "train/build/batches.h"

#include "train/build/build_steps.h"

namespace cairn::train {

void build_sampler(Job& job, const data::Subset& subset) {
  const Settings& s = job.config.settings;
  job.subset = subset.within(job.data.samples->training());
  job.sampler = data::make_sampler(s.data.sampler, {.from = job.subset,
                                                    .global_batch = s.train.global_batch,
                                                    .steps = s.train.steps,
                                                    .seed = static_cast<uint64_t>(s.train.seed),
                                                    .streams = job.data.streams});
  job.batches = std::make_unique<data::BatchSource>(*job.data.samples, *job.sampler, job.subset, job.shares, job.config.device);
}

data::BatchIndex batch_index(const Job& job, int64_t step) { return {step, job.progress.batches_passed}; }

std::vector<int64_t> batch_ids(const Job& job, int64_t step) { return job.batches->ids(batch_index(job, step)); }

void stop_loader(Job& job) {
  job.ahead.loader.reset();
  job.ahead.planned.reset();
}

void start_loader(Job& job) {
  stop_loader(job);
  if (job.ahead.planner) {
    job.ahead.planned = plan_ahead(job);
    return;
  }
  job.ahead.loader = job.batches->load_ahead(batch_index(job, job.progress.steps_done + 1), job.config.settings.train.steps + 1);
}

}  // namespace cairn::train
