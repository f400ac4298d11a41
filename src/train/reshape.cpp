#include "train/reshape.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "comm/world.h"
#include "snapshot/copy.h"
#include "snapshot/folder.h"
#include "snapshot/snapshot.h"
#include "train/build.h"
#include "train/report/run_files.h"
#include "train/state/snapshot_writer.h"

namespace cairn::train {

namespace fs = std::filesystem;

int64_t reshape(comm::World& world, base::Recipe recipe, Start start) {
  start.resume = true;
  const std::unique_ptr<Job> job = build(world, std::move(recipe), start, {});
  if (job->engine.step_group->rank() == 0) open_run_folder(job->config.out, *job);
  SnapshotWriter writer(*job, world.log(), world.wall(), base::real_disk());
  writer.save();
  writer.finish();
  writer.rethrow_failure();
  return job->progress.steps_done;
}

namespace {

constexpr size_t kCopyBlock = 4 << 20;

int64_t copy_one(const fs::path& from, int64_t step, const fs::path& to) {
  base::make_folder(to);
  for (const char* file : {"recipe.toml", "plan.json"})
    if (base::path_exists(from / file)) base::write_atomically(to / file, std::string_view(base::read_file(from / file, 64 << 20)));
  snapshot::CopyReader reader(snapshot::step_folder(from.string(), step));
  snapshot::CopyWriter writer(to.string(), reader.manifest(), base::real_disk());
  std::vector<std::byte> block(kCopyBlock);
  for (int64_t left = reader.bytes(); left > 0;) {
    const std::span<std::byte> now = std::span(block).first(static_cast<size_t>(std::min<int64_t>(left, kCopyBlock)));
    reader.read(now);
    writer.write(now);
    left -= static_cast<int64_t>(now.size());
  }
  writer.commit();
  return reader.bytes();
}

}  // namespace

int64_t copy_run(const fs::path& from, int64_t step, const fs::path& to) {
  if (base::path_exists(to)) base::fail_input("--out {}: it is there already; choose a folder that is not", to.string());
  int64_t bytes = copy_one(from, step, to);
  for (int island = 1; base::path_exists(from / fmt::format("island-{}", island)); ++island)
    bytes += copy_one(from / fmt::format("island-{}", island), step, to / fmt::format("island-{}", island));
  return bytes;
}

}  // namespace cairn::train
