#include "train/islands/track_merge.h"

#include "base/clock.h"
#include "base/log.h"
#include "comm/world.h"
#include "kernels/streams.h"
#include "train/build.h"
#include "train/evaluate.h"
#include "train/islands/scoped_global_parameters.h"
#include "train/report/run_recorder.h"

namespace cairn::train {

sync::StepMetrics track_merge(comm::World& world, Job& job, RunRecorder& recorder) {
  const int64_t step = job.progress.steps_done;
  sync::Sync& sync = *job.engine.sync;
  if (!sync.tracks_merge(step)) return {};
  if (job.config.device.is_cuda()) kernels::current_stream(job.config.device).synchronize();  // the step ends here
  const std::chrono::nanoseconds begun = world.wall().now(), waited = world.waited();
  const auto traced = job.instruments.trace->span("track merge", "evaluate");
  sync::StepMetrics found = sync.track_merge(step, [&](const std::vector<at::Tensor>& parameters) {
    const ScopedGlobalParameters these(job, parameters);
    return evaluate_held_out(job).loss;
  });
  const double seconds = base::seconds(world.wall().now() - begun);
  recorder.paused_in_step(seconds, world.waited() - waited);
  if (found.empty()) {
    if (world.rank() == 0)
      world.log().warn("step {}: the mean of the islands could not be formed: nothing says if they are mergeable", step);
    return found;
  }
  found.emplace_back("merge_seconds", seconds);
  const auto of = [&](const char* name) { return sync::metric(found, name); };
  if (world.rank() == 0 && of("merge_loss") > 0)
    world.log().info("step {}: held-out loss of the islands {:.4f}, of their mean {:.4f} (gap {:+.4f}); distance from it {:.3g}", step,
                     of("merge_local_loss"), of("merge_loss"), of("merge_gap"), of("merge_distance"));
  return found;
}

}  // namespace cairn::train
