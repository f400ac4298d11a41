#include "train/build/batches.h"

#include <algorithm>
#include <limits>

#include "comm/group.h"
#include "train/build/build_steps.h"
#include "train/sample_feedback.h"

namespace cairn::train {
namespace {

// Ranks along tp compute the same losses: the first of them counts.
bool counts_losses_once(const Job& job) {
  const comm::Group* tp = job.engine.axes.find("tp");
  return !tp || tp->rank() == 0;
}

}  // namespace

void build_sampler(Job& job, const data::Subset& subset) {
  Settings& s = job.config.settings;
  job.subset = subset.within(job.data.samples->training());
  job.sampler = data::make_sampler(s.data.sampler, {.from = job.subset,
                                                    .global_batch = s.train.global_batch,
                                                    .steps = s.train.steps,
                                                    .seed = static_cast<uint64_t>(s.train.seed),
                                                    .streams = job.data.streams,
                                                    .epochs = s.train.epochs,
                                                    .options = s.data.order,
                                                    .shape = job.data.shape,
                                                    .samples = job.data.samples.get()});
  if (s.train.epochs > 0) s.train.steps = job.sampler->steps();  // an upper bound where the sampler leaves samples out
  job.batches = std::make_unique<data::BatchSource>(*job.data.samples, *job.sampler, job.subset, job.shares, job.config.device);
  if (data::sampler_needs(s.data.sampler).losses)
    job.sample_losses =
        std::make_unique<SampleLosses>(*job.engine.step_group, job.shares, counts_losses_once(job), s.data.order.flush_steps);
}

data::BatchIndex batch_index(const Job& job, int64_t step) { return {step, job.progress.batches_passed}; }

std::vector<int64_t> batch_ids(const Job& job, int64_t step) { return job.batches->ids(batch_index(job, step)); }

int64_t last_step(const Job& job) { return job.batches->steps(job.progress.batches_passed); }

void stop_loader(Job& job) {
  job.ahead.loader.reset();
  job.ahead.planned.reset();
}

void start_loader(Job& job) {
  stop_loader(job);
  advance_sampler(job);
  if (job.ahead.planner) {
    job.ahead.planned = plan_ahead(job);
    return;
  }
  const int64_t first = job.progress.steps_done + 1, end = last_step(job) + 1;
  const int64_t unknown =
      job.sampler->known() == std::numeric_limits<int64_t>::max() ? end : job.sampler->known() - job.progress.batches_passed + 1;
  job.ahead.loader = job.batches->load_ahead(batch_index(job, first), std::max(first, std::min(end, unknown)));
}

}  // namespace cairn::train
