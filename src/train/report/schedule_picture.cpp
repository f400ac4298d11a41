#include <fmt/format.h>

#include "base/files.h"
#include "comm/world.h"
#include "parallel/layout/make_plan.h"
#include "parallel/schedule/timeline.h"
#include "parallel/schedule/timeline_svg.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/report/try_to_write.h"

namespace cairn::train {
namespace {

constexpr int kNumbers = 5;  // the fields of an action: kind, stage, micro-batch, begin, end

// The mean time of each stage's actions.
parallel::StageCosts mean_costs(const parallel::Timeline& measured) {
  const size_t stages = measured.rank_of_stage.size();
  std::array<std::vector<double>, parallel::kActionKinds> sums, counts;
  for (auto& one : sums) one.assign(stages, 0);
  for (auto& one : counts) one.assign(stages, 0);
  for (const auto& rank : measured.ranks)
    for (const parallel::TimedAction& one : rank) {
      const auto kind = static_cast<size_t>(one.action.kind), stage = static_cast<size_t>(one.action.stage);
      sums[kind][stage] += one.end_s - one.begin_s;
      counts[kind][stage] += 1;
    }
  parallel::StageCosts costs;
  for (size_t stage = 0; stage < stages; ++stage) {
    const auto mean = [&](parallel::ActionKind kind) {
      const auto k = static_cast<size_t>(kind);
      return counts[k][stage] > 0 ? sums[k][stage] / counts[k][stage] : 0;
    };
    const double both = mean(parallel::ActionKind::backward);  // if backward is not split into input and weight gradients, half each
    costs.forward_s.push_back(mean(parallel::ActionKind::forward));
    costs.backward_input_s.push_back(mean(parallel::ActionKind::backward_input) + both / 2);
    costs.backward_weight_s.push_back(mean(parallel::ActionKind::backward_weight) + both / 2);
    costs.recompute_s.push_back(mean(parallel::ActionKind::recompute));
    costs.gather_s.push_back(mean(parallel::ActionKind::gather));
    costs.reduce_s.push_back(mean(parallel::ActionKind::reduce));
    costs.offload_s.push_back(mean(parallel::ActionKind::offload));
  }
  return costs;
}

}  // namespace

void draw_schedule(comm::World& world, const Job& job, const std::filesystem::path& out) {
  if (!job.engine.pipeline) return;
  std::vector<double> numbers;
  for (const parallel::TimedAction& one : job.engine.pipeline->measured())
    numbers.insert(numbers.end(), {static_cast<double>(one.action.kind), static_cast<double>(one.action.stage),
                                   static_cast<double>(one.action.micro_batch), one.begin_s, one.end_s});
  comm::Group& along = world.group(job.config.plan.mesh.peers(world.rank(), "pp"), "pipeline");
  const comm::Label label{comm::Purpose::control, "schedule"};
  std::vector<int64_t> counts(static_cast<size_t>(along.size()));
  auto count = static_cast<int64_t>(numbers.size());
  along.all_gather({counts.data(), along.size(), comm::Dtype::i64}, {&count, 1, comm::Dtype::i64}, label).wait_host();
  int64_t total = 0;
  for (const int64_t n : counts) total += n;
  std::vector<double> all(static_cast<size_t>(total));
  along.all_gather({all.data(), total, comm::Dtype::f64}, {numbers.data(), count, comm::Dtype::f64}, label, counts).wait_host();
  if (!job.config.writes || total == 0) return;
  parallel::Timeline measured{.name = job.config.plan.schedule,
                              .micro_batches = static_cast<int>(job.config.plan.micro_batches),
                              .rank_of_stage = job.config.plan.rank_of_stage,
                              .ranks = {}};
  const double* next = all.data();
  for (const int64_t n : counts) {
    std::vector<parallel::TimedAction>& actions = measured.ranks.emplace_back();
    for (int64_t i = 0; i < n / kNumbers; ++i, next += kNumbers)
      actions.push_back(
          {{static_cast<parallel::ActionKind>(static_cast<int>(next[0])), static_cast<int>(next[1]), static_cast<int>(next[2])},
           next[3],
           next[4]});
  }
  const auto write = [&](const char* name, const std::string& text) {
    try_to_write(world.log(), name, [&] { base::write_atomically(out / name, text); });
  };
  write("schedule.svg", parallel::draw_svg(measured));
  const parallel::Schedule planned = parallel::schedule_of(job.config.settings.layout, job.config.plan, measured.micro_batches);
  write("schedule-planned.svg", parallel::draw_svg(parallel::timeline(planned, mean_costs(measured))));
}

}  // namespace cairn::train
