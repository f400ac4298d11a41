// Islands that step separately save into their own run directories. If a run is killed, or an island is lost, some islands have newer
// snapshots than others, but all must resume from the same step:
//
//   1. Every rank opens its newest good snapshot of a step <= step_last. All ranks gather what they found. The best is that of the latest
//      step T.
//   2. Exact: while the earliest step found is at most max_apart behind T, every rank opens its newest one up to that step. If all have
//      the same step then, and one model where the sync rule has one, that is the snapshot. The resumed run repeats what was lost.
//   3. Copied: otherwise the best snapshot is copied to all ranks that lack it (transfer_snapshot.h), and all resume at T. The islands that
//      received it train on their own samples: these follow from step and rank alone.
//
// So one snapshot of one island is enough. Two kinds of snapshot are marked in state.json (RunState):
//   apart             the island had trained without the others (sync.island.on_minority = continue). Used only if there is no other kind.
//   round_unfinished  the island ended in a round that the others may have finished. At one step, a snapshot without this mark is better.
#include "train/state/find_snapshot.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"
#include "train/report/run_json.h"
#include "train/state/folder_view.h"
#include "train/state/transfer_snapshot.h"

namespace cairn::train {
namespace {

constexpr const char* kState = "training/state.json";

// The snapshot that one rank found.
struct Found {
  int64_t step = -1;     // -1: none
  int64_t state = 0;     // checksum of state.json
  int64_t model = 0;     // checksum of the model
  int64_t finished = 1;  // 0: marked round_unfinished
  int64_t damaged = 0;   // 1: there are snapshots, and all are damaged
  int64_t group = 0;     // the first rank of its step group
  bool operator==(const Found&) const = default;
};
constexpr int kFoundNumbers = sizeof(Found) / sizeof(int64_t);

bool is_better(const Found& a, const Found& b) { return std::pair(a.step, a.finished) > std::pair(b.step, b.finished); }

class SearchedRun {
 public:
  SearchedRun(comm::World& world, comm::Group& step_group, const std::string& run_dir, const SnapshotSearch& search)
      : world_(world),
        group_(step_group),
        run_dir_(run_dir),
        search_(search),
        islands_(step_group.size() < world.size()),
        passed_over_(search.passed_over) {}

  std::optional<snapshot::OpenSnapshot> find() {
    std::vector<Found> all;
    for (const bool apart_counts : {false, true}) {
      apart_counts_ = apart_counts;
      while (true) {
        std::optional<snapshot::OpenSnapshot> mine = newest(search_.step_last);
        all = found_by_all(mine);
        const auto best = std::min_element(all.begin(), all.end(), is_better);
        if (best->step < 0) break;
        if (auto exact = common(mine, all, best->step)) return exact;
        const auto source = static_cast<int>(best - all.begin());
        if (is_whole(mine, source)) return transfer(mine, all, source);
        if (group_.ranks().front() == static_cast<int>(best->group)) passed_over_.insert(best->step);
      }
    }
    check_damage(all);
    return std::nullopt;
  }

 private:
  bool is_apart(const snapshot::OpenSnapshot& found) const {
    return islands_ && parse_run_state(found.text(kState), found.path() + "/" + kState).apart;
  }

  // This rank's newest good snapshot up to this step.
  std::optional<snapshot::OpenSnapshot> newest(int64_t step_last) {
    // On another machine's disk, or lost. (The first rank of a run without islands says so.)
    if ((islands_ || group_.rank() > 0) && !base::path_exists(run_dir_ + "/recipe.toml")) return std::nullopt;
    base::Log quiet = base::Log::quiet();
    base::Log& log = group_.rank() == 0 ? world_.log() : quiet;  // all ranks of a step group find the same damage
    try {
      while (true) {
        std::optional<snapshot::OpenSnapshot> found = snapshot::open_latest(run_dir_, log, step_last, snapshot::Check::all_but_tensors);
        if (!found || (!passed_over_.contains(found->step()) && (apart_counts_ || !is_apart(*found)))) return found;
        step_last = found->step() - 1;
      }
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::corrupt_file) throw;
      damage_ = std::current_exception();
      return std::nullopt;
    }
  }

  Found described(const std::optional<snapshot::OpenSnapshot>& found) const {
    Found mine{.damaged = damage_ ? 1 : 0, .group = group_.ranks().front()};
    if (!found) return mine;
    mine.step = found->step();
    mine.state = static_cast<int64_t>(base::checksum(found->text(kState)));
    mine.model = static_cast<int64_t>((found->checksum("model") * 31 + found->checksum("adapter")) * 31 + found->checksum("forms"));
    if (islands_) mine.finished = parse_run_state(found->text(kState), found->path() + "/" + kState).round_unfinished ? 0 : 1;
    return mine;
  }

  std::vector<Found> found_by_all(std::optional<snapshot::OpenSnapshot>& found) {
    Found mine = described(found);
    std::vector<Found> all(static_cast<size_t>(world_.size()));
    world_.everyone()
        .all_gather({all.data(), kFoundNumbers * world_.size(), comm::Dtype::i64}, {&mine, kFoundNumbers, comm::Dtype::i64},
                    {comm::Purpose::control, "snapshots"})
        .wait_host();
    lend(found, all);
    check_groups(all);
    return all;
  }

  // Ranks that find nothing where the first of their group has a snapshot do not see its folder.
  void lend(std::optional<snapshot::OpenSnapshot>& found, std::vector<Found>& all) {
    bool lends = false;
    for (Found& one : all) {
      const Found& first = all[static_cast<size_t>(one.group)];
      if (one.step >= 0 || one.damaged || first.step < 0) continue;
      lends = lends || one.group == group_.ranks().front();
      one = first;
    }
    if (lends) lend_snapshot(group_, found);
  }

  // Machines that do not share a file system may see different files.
  void check_groups(const std::vector<Found>& all) const {
    const auto words = [](const Found& one) { return one.step < 0 ? "none" : fmt::format("one of step {}", one.step); };
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const auto first = static_cast<size_t>(all[rank].group);
      if (all[rank] == all[first] || (islands_ && all[rank].step != all[first].step)) continue;
      base::fail_input("{}: rank {} finds {} to resume, rank {} {}{}: every machine needs the same snapshots: share the folder or copy it",
                       run_dir_, first, words(all[first]), rank, words(all[rank]),
                       all[rank].step == all[first].step ? ", but another" : "");
    }
  }

  // Nobody has a good snapshot.
  void check_damage(const std::vector<Found>& all) const {
    if (damage_) std::rethrow_exception(damage_);
    for (size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].damaged)
        throw Error(Error::Kind::corrupt_file, fmt::format("all snapshots of rank {} are damaged, and no other rank has one", rank));
  }

  bool fits(const Found& one, const Found& other) const {
    return one.step == other.step && (!search_.one_model || (one.model == other.model && one.finished == other.finished));
  }

  // The snapshot of the newest step that all ranks have one of; nothing if that lies too far behind the step `furthest`.
  std::optional<snapshot::OpenSnapshot> common(std::optional<snapshot::OpenSnapshot> mine, std::vector<Found> all, int64_t furthest) {
    while (true) {
      const auto [least, most] =
          std::minmax_element(all.begin(), all.end(), [](const Found& a, const Found& b) { return a.step < b.step; });
      if (least->step < 0 || furthest - least->step > search_.max_apart) return std::nullopt;
      if (least->step == most->step)
        return std::all_of(all.begin(), all.end(), [&](const Found& one) { return fits(one, all[0]); }) ? mine : std::nullopt;
      mine = newest(least->step);
      all = found_by_all(mine);
    }
  }

  // Before it is copied: whether all bytes of what the source has are good. Collective.
  bool is_whole(const std::optional<snapshot::OpenSnapshot>& mine, int source) {
    int64_t whole = 1;
    if (world_.rank() == source) try {
        snapshot::open(mine->path());
      } catch (const Error& error) {
        if (error.kind() != Error::Kind::corrupt_file) throw;
        world_.log().warn("snapshot of step {} is damaged, passed over: {}", mine->step(), error.what());
        damage_ = std::current_exception();
        whole = 0;
      }
    world_.everyone().broadcast({&whole, 1, comm::Dtype::i64}, source, {comm::Purpose::control, "snapshots"}).wait_host();
    return whole != 0;
  }

  snapshot::OpenSnapshot transfer(const std::optional<snapshot::OpenSnapshot>& mine, const std::vector<Found>& all, int source) {
    const Found& best = all[static_cast<size_t>(source)];
    SnapshotTransfer plan{.source = source, .step = best.step, .state_checksum = static_cast<uint64_t>(best.state)};
    for (const Found& one : all) {
      plan.group_of.push_back(static_cast<int>(one.group));
      plan.lacks.push_back(!fits(one, best));
    }
    return transfer_snapshot(world_, plan, mine, run_dir_);
  }

  comm::World& world_;
  comm::Group& group_;
  const std::string& run_dir_;
  const SnapshotSearch& search_;
  const bool islands_;
  std::set<int64_t> passed_over_;
  bool apart_counts_ = false;
  std::exception_ptr damage_;  // why this rank has no good snapshot, though it has some
};

}  // namespace

std::optional<snapshot::OpenSnapshot> find_snapshot(comm::World& world, comm::Group& step_group, const std::string& run_dir,
                                                    const SnapshotSearch& search) {
  std::optional<snapshot::OpenSnapshot> found = SearchedRun(world, step_group, run_dir, search).find();
  if (!found && world.rank() == 0) world.log().info("nothing to resume in {}: starting at step 1", run_dir);
  return found;
}

}  // namespace cairn::train
