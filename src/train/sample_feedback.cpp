#include "train/sample_feedback.h"

#include <array>
#include <limits>
#include <utility>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "train/build/batches.h"
#include "train/job.h"

namespace cairn::train {

SampleLosses::SampleLosses(comm::Group& group, const data::SampleShares& shares, bool counts_once, int64_t flush_steps)
    : group_(group), shares_(shares), counts_once_(counts_once), flush_steps_(flush_steps) {}

void SampleLosses::add(std::vector<int64_t> ids, const StepOutput& output) {
  const data::BatchRange own = shares_.own(static_cast<int64_t>(ids.size()));
  const bool here = counts_once_ && output.sample_losses.defined();
  CAIRN_CHECK(!here || (output.sample_losses.numel() == own.count && output.sample_counts.numel() == own.count),
              "losses of {} samples, and this rank has {}", output.sample_losses.numel(), own.count);
  steps_.push_back({std::move(ids), here ? output.sample_losses : at::Tensor(), here ? output.sample_counts : at::Tensor()});
}

data::SampleFeedback SampleLosses::flush() {
  data::SampleFeedback all;
  std::vector<at::Tensor> mine;             // on the device: all losses, then all counts
  std::vector<data::BatchRange> positions;  // of them, in `all`
  for (KeptStep& step : steps_) {
    const data::BatchRange own = shares_.own(static_cast<int64_t>(step.ids.size()));
    const auto before = static_cast<int64_t>(all.ids.size());
    all.ids.insert(all.ids.end(), step.ids.begin(), step.ids.end());
    if (!step.losses.defined() || own.count == 0) continue;
    mine.push_back(at::stack({step.losses.to(at::kFloat), step.counts.to(at::kFloat)}));
    positions.push_back({before + own.first, own.count});
  }
  steps_.clear();
  const auto total = static_cast<int64_t>(all.ids.size());
  const at::Tensor sums = at::zeros({2, total}, at::kFloat);  // by position: each is written by the ranks that have it, and is 0 elsewhere
  if (!mine.empty()) {
    const at::Tensor found = at::cat(mine, 1).to(at::kCPU);
    int64_t at = 0;
    for (const data::BatchRange& one : positions) {
      sums.narrow(1, one.first, one.count).copy_(found.narrow(1, at, one.count));
      at += one.count;
    }
  }
  float* const losses = sums.mutable_data_ptr<float>();
  float* const counts = losses + total;
  if (group_.size() > 1 && total > 0)
    group_.all_reduce({losses, 2 * total, comm::Dtype::f32}, comm::Reduce::sum, {comm::Purpose::loss, "losses of samples"}).wait_host();
  size_t kept = 0;
  for (int64_t i = 0; i < total; ++i) {
    if (counts[i] == 0) continue;
    all.ids[kept++] = all.ids[static_cast<size_t>(i)];
    all.losses.push_back(static_cast<float>(static_cast<double>(losses[i]) / static_cast<double>(counts[i])));
  }
  all.ids.resize(kept);
  return all;
}

void keep_sample_losses(Job& job, std::vector<int64_t> ids, const StepOutput& output) {
  if (!job.sample_losses) return;
  job.sample_losses->add(std::move(ids), output);
  if (job.sample_losses->is_full()) flush_sample_losses(job);
}

void flush_sample_losses(Job& job) {
  if (!job.sample_losses) return;
  const data::SampleFeedback found = job.sample_losses->flush();
  if (found.ids.empty()) return;
  mesh::before_writing_all(job.engine.trained.barrier);  // a snapshot may still copy the scores
  job.sampler->feedback(found);
}

namespace {

// All ranks must draw the same samples from here on.
void compare_draws(Job& job) {
  comm::Group& group = *job.engine.step_group;
  if (group.size() == 1) return;
  const auto hash = static_cast<int64_t>(job.sampler->hash() >> 1);
  std::array<int64_t, 2> most{hash, -hash};
  group.all_reduce({most.data(), 2, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "hash of the sampler's draws"})
      .wait_host();
  if (most[0] == -most[1]) return;
  throw Error(Error::Kind::diverged,
              fmt::format("data.sampler = {}: ranks would draw different samples after step {} (hashes {:016x} to {:016x}): their scores "
                          "differ. Resume from the last snapshot.",
                          job.config.settings.data.sampler, job.progress.steps_done, -most[1], most[0]));
}

}  // namespace

void advance_sampler(Job& job) {
  data::Sampler& sampler = *job.sampler;
  if (sampler.known() == std::numeric_limits<int64_t>::max()) return;
  flush_sample_losses(job);
  const int64_t next = batch_index(job, job.progress.steps_done + 1).batch();
  const std::chrono::nanoseconds since = job.instruments.wall->now();
  if (sampler.known() <= next && sampler.known() < sampler.steps()) mesh::before_writing_all(job.engine.trained.barrier);
  while (sampler.known() <= next && sampler.known() < sampler.steps()) sampler.advance();
  if (job.sample_losses) job.sample_losses->decided(base::seconds(job.instruments.wall->now() - since));
  compare_draws(job);
}

std::vector<std::pair<std::string, double>> epoch_metrics(Job& job, int64_t step) {
  std::vector<std::pair<std::string, double>> metrics;
  std::string line;
  for (auto& [name, value] : job.sampler->metrics(batch_index(job, step).batch())) {
    line += fmt::format("{}{} {:.6g}", line.empty() ? "" : ", ", name, value);
    metrics.emplace_back("sampler_" + name, value);
  }
  if (metrics.empty()) return {};
  if (job.sample_losses) metrics.emplace_back("sampler_seconds", job.sample_losses->decided_s());
  comm::World& world = job.engine.step_group->world();
  if (world.rank() == 0)
    world.log().info("data.sampler = {}, step {}, epoch {:.0f}: {}{}", job.config.settings.data.sampler, step,
                     job.sampler->epoch(batch_index(job, step).batch()), line,
                     job.sample_losses ? fmt::format(", decided in {:.3f} s", job.sample_losses->decided_s()) : "");
  return metrics;
}

}  // namespace cairn::train
