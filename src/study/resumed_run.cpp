#include "study/resumed_run.h"

#include <cstdint>

#include "base/files.h"
#include "comm/group.h"
#include "comm/world.h"
#include "train/generations.h"

namespace cairn::study {

namespace {

bool as_the_first_rank_sees(comm::World& world, bool seen) {
  int64_t yes = world.rank() == 0 && seen ? 1 : 0;
  world.everyone().all_reduce({&yes, 1, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "state of a study"}).wait_host();
  return yes > 0;
}

}  // namespace

bool has_begun(comm::World& world, const std::filesystem::path& run) { return as_the_first_rank_sees(world, train::can_resume(run)); }
bool has_state(comm::World& world, const std::filesystem::path& file) { return as_the_first_rank_sees(world, base::path_exists(file)); }

}  // namespace cairn::study
