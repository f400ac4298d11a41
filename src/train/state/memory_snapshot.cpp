// Saving, at the end of a step. Collective parts are marked (c).
//
//   1. Do all ranks have their keeper still?                                             (c) one small all-gather
//   2. The first rank of each node waits until its keeper has committed the version before. (c)
//   3. First save, other sizes, a new keeper: keepers meet, a layout is made             (c)
//   4. Every rank copies its part into the DIRTY buffer of its node and says FILLED. Training goes on; keepers encode and commit.
//
// Restoring: keepers meet; the newest version that parity covers is checked and, where something is lost, rebuilt (keeper_group.h). Its
// parts are files of ranks as a snapshot on disk has them, so any layout loads them (part_load.cpp); each unit is read by a rank whose node
// has it.
#include "train/state/memory_snapshot.h"

#include <algorithm>
#include <poll.h>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/run_events.h"
#include "comm/group.h"
#include "comm/world.h"
#include "parallel/plan.h"
#include "snapshot/rank_part.h"
#include "train/build.h"
#include "train/report/gather_texts.h"
#include "train/state/memory_blob.h"
#include "train/state/restore.h"

namespace cairn::train {
namespace {

constexpr auto kCommitLimit = std::chrono::seconds(30);                      // for the version before
constexpr std::chrono::nanoseconds kStartLimit = std::chrono::seconds(30);   // for a keeper to start and answer
constexpr std::chrono::nanoseconds kRestartLimit = std::chrono::seconds(3);  // while training waits for another one
constexpr auto kAnswerLimit = std::chrono::seconds(30);
constexpr double kMegabyte = 1e6;

const MemorySnapshotOptions& options_of(const Job& job) { return job.config.settings.memory_snapshot; }

}  // namespace

MemorySnapshots::~MemorySnapshots() = default;

bool MemorySnapshots::open(Job& job, comm::World& world) {
  if (options_of(job).every == 0) return false;
  if (parallel::islands_step_separately(job.config.plan) || job.engine.step_group->size() != world.size()) {
    if (world.rank() == 0 && !std::exchange(warned_, true))
      world.log().warn("snapshot.memory.every = {}: islands that step separately are not kept in memory. Use snapshot.every.",
                       options_of(job).every);
    return false;
  }
  if (!keeper_) keeper_ = std::make_unique<elastic::KeeperClient>(door_);
  return true;
}

// The keepers meet. Refuses nodes that share a machine.
std::string MemorySnapshots::meet(Job& job, comm::World& world) {
  group_ = std::make_unique<KeeperGroup>(world.everyone(), *keeper_);
  if (std::string trouble = group_->meet(options_of(job).rate * kMegabyte, reduced_ ? kRestartLimit : kStartLimit); !trouble.empty()) {
    group_ = nullptr;
    return trouble;
  }
  const bool parity = options_of(job).parity != elastic::ParityKind::none;
  if (parity && group_->share_a_machine() && !options_of(job).same_host)
    base::fail_input(
        "snapshot.memory.parity = {}: several nodes are on one machine, whose loss would lose them all. Use parity = \"none\", or "
        "same_host "
        "= true for tests.",
        elastic::word_of(options_of(job).parity));
  if (parity && group_->sites() == 1 && world.rank() == 0 && !std::exchange(warned_, true))
    world.log().info(
        "snapshots in memory every {} steps: they survive the loss of ranks. There is one node, whose loss they do not survive",
        options_of(job).every);
  return {};
}

std::optional<int64_t> MemorySnapshots::newest_step(Job& job, comm::World& world) {
  found_.reset();
  if (!open(job, world)) return std::nullopt;
  if (const std::string trouble = meet(job, world); !trouble.empty()) {
    if (world.rank() == 0) world.log().warn("snapshots in memory: {}", trouble);
    return std::nullopt;
  }
  KeeperGroup::Newest newest = group_->newest();
  serial_ = group_->last_serial();
  if (newest.version) {
    std::vector<std::string> said;
    newest.beyond = group_->repair(*newest.version, said);
    for (const std::string& line : said) {
      if (world.rank() != 0) break;
      world.log().warn("snapshot of step {} in memory: {}", newest.version->step, line);
      base::RunEvents(job.config.out).write("rebuilt", {{"step", newest.version->step}, {"what", line}});
    }
    if (newest.beyond.empty()) found_ = std::move(newest.version);
  }
  if (const std::string trouble = group_->adopt(found_ ? &*found_ : nullptr); !trouble.empty()) {
    group_ = nullptr;
    found_.reset();
    newest.beyond = trouble;
  }
  if (found_) return found_->step;
  if (!newest.beyond.empty()) {
    if (world.rank() == 0) world.log().warn("{}: what is on disk is used", newest.beyond);
    const bool on_disk = world.rank() == 0 && base::path_exists(job.config.out / "snapshots");
    if (gather_texts(world.everyone(), on_disk ? "yes" : "", "snapshots")[0].empty())
      base::fail_input(
          "{}, and there is no snapshot on disk (snapshot.every = {}): nothing is resumed. Start the run anew, or save to disk too.",
          newest.beyond, job.config.settings.snapshot.every);
  }
  return std::nullopt;
}

std::string MemorySnapshots::load(Job& job, comm::World& world) {
  CAIRN_CHECK(found_ && group_, "nothing was found");
  comm::Group& everyone = world.everyone();
  const std::string name = fmt::format("the keepers' memory (step {})", found_->step);
  struct Part {
    BlobFacts facts;
    std::shared_ptr<const base::MappedFile> file;
    int site = 0;
  };
  std::map<int, Part> parts;  // by rank of the run that saved
  std::string trouble, packed;
  try {
    for (int node = 0; node < found_->spec.code.nodes; ++node) {
      if (found_->sites[static_cast<size_t>(node)] != group_->site()) continue;
      const std::optional<elastic::Packet> data =
          keeper_->ask({{"op", "read"}, {"vault", found_->spec.id}, {"node", node}, {"serial", found_->serial}}, kAnswerLimit);
      if (!data || data->files.size() != 1) throw Error(Error::Kind::corrupt_file, "a keeper is gone");
      const auto whole = base::MappedFile::map(data->files.front().fd(), 0, data->body.at("bytes").get<int64_t>(), name);
      for (const elastic::Region& region : found_->spec.regions_of(node)) {
        Part& part = parts[region.rank];
        part.facts = read_blob(whole->bytes().subspan(static_cast<size_t>(region.offset), static_cast<size_t>(region.bytes)), name);
        part.file = file_in(data->files.front().fd(), region.offset, part.facts, name);
        part.site = group_->site();
      }
    }
    if (group_->leads())
      for (const auto& [rank, part] : parts) packed += fmt::format("{:08} {:020} ", rank, pack(part.facts).size()) + pack(part.facts);
  } catch (const Error& error) {
    trouble = error.what();
  }
  if (trouble = group_->agree(trouble); !trouble.empty()) return trouble;
  const std::vector<std::string> all = gather_texts(everyone, packed, "state from memory");
  for (size_t from = 0; from < all.size(); ++from)
    for (size_t at = 0; at + 30 <= all[from].size();) {
      const int rank = std::stoi(all[from].substr(at, 8));
      const auto length = static_cast<size_t>(std::stoll(all[from].substr(at + 9, 20)));
      Part& part = parts[rank];
      if (!part.file) {
        part.facts = unpack(all[from].substr(at + 30, length), name);
        if (part.facts.file_bytes > 0) part.file = file_without_values(part.facts, name);
        part.site = group_->site_of(static_cast<int>(from));
      }
      at += 30 + length;
    }
  std::vector<snapshot::Vote> votes;
  std::map<std::string, snapshot::PartFile> files;
  snapshot::Manifest manifest{.step = found_->step, .version = {}, .files = {}};
  std::map<std::string, std::string> texts;
  for (auto& [rank, part] : parts) {
    votes.push_back(snapshot::parse_vote(part.facts.vote, name));
    if (part.facts.file_bytes > 0) files[snapshot::rank_file(rank)] = {part.file, group_->ranks_at(part.site)};
    texts.merge(part.facts.texts);
    if (!part.facts.version.empty()) manifest.version = part.facts.version;
  }
  snapshot::CommittedParts committed = snapshot::merge_votes(votes);
  manifest.files = std::move(committed.files);
  const snapshot::OpenSnapshot opened =
      snapshot::open_parts(name, std::move(manifest), std::move(committed.pieces), files, std::move(texts));
  return restore(job, world.log(), opened, job.config.out.string());
}

// Until the version before is CLEAN, or for a while.
std::string MemorySnapshots::wait_for_commit() const {
  if (spec_.id.empty()) return {};
  const base::RealClock clock;
  try {
    while (true) {
      const std::optional<elastic::Packet> answer = keeper_->ask({{"op", "in_flight"}, {"vault", spec_.id}}, kAnswerLimit);
      if (!answer) return "a keeper is gone";
      if (!answer->body.at("in_flight").get<bool>()) return {};
      if (clock.now() > kCommitLimit) return fmt::format("the snapshot before was not safe after {} s", kCommitLimit.count());
      ::poll(nullptr, 0, 1);
    }
  } catch (const Error& error) {
    return error.what();
  }
}

// Memory for all ranks of all nodes. The same layout as before keeps what is in it.
std::string MemorySnapshots::lay_out(int64_t bytes, const MemorySnapshotOptions& options) {
  const int sites = group_->sites();
  std::vector<std::string> wanted = gather_texts(group_->group(), std::to_string(bytes), "sizes in memory");
  elastic::VaultSpec spec{.id = {}, .index = group_->site(), .code = {sites > 1 ? options.parity : elastic::ParityKind::none, sites, 0}};
  std::vector<int64_t> used(static_cast<size_t>(sites), 0);
  for (size_t rank = 0; rank < wanted.size(); ++rank) {
    const int site = group_->site_of(static_cast<int>(rank));
    int64_t& at = used[static_cast<size_t>(site)];
    spec.regions.push_back({static_cast<int>(rank), site, at, std::stoll(wanted[rank])});
    at += spec.regions.back().bytes;
  }
  spec.code.data_bytes = elastic::padded_bytes(spec.code.kind, sites, *std::max_element(used.begin(), used.end()));
  if (found_ && found_->spec.same_layout(spec) && spec_.id.empty()) spec.id = found_->spec.id;
  const std::vector<std::string> names = gather_texts(group_->group(), group_->rank() == 0 ? base::random_name() : "", "layout in memory");
  if (spec.id.empty()) spec.id = names[0];
  std::string trouble;
  try {
    if (group_->leads() && !keeper_->ask({{"op", "layout"}, {"spec", to_json(spec)}}, kAnswerLimit)) trouble = "a keeper is gone";
  } catch (const Error& error) {
    trouble = error.what();
  }
  if (trouble = group_->agree(trouble); !trouble.empty()) return trouble;
  try {
    const std::optional<elastic::Packet> buffers = keeper_->ask({{"op", "buffers"}, {"vault", spec.id}}, kAnswerLimit);
    if (!buffers || buffers->files.size() != 2)
      trouble = "a keeper is gone";
    else
      for (size_t i = 0; i < 2; ++i) maps_[i] = elastic::SegmentMap(buffers->files[i].fd(), spec.code.data_bytes);
  } catch (const Error& error) {
    trouble = error.what();
  }
  if (trouble = group_->agree(trouble); !trouble.empty()) return trouble;
  const elastic::Region& own = spec.regions[static_cast<size_t>(group_->rank())];
  offset_ = own.offset;
  room_ = own.bytes;
  spec_ = std::move(spec);
  return {};
}

std::string MemorySnapshots::write(const RankSnapshot& saved, int64_t step) {
  try {
    const std::optional<elastic::Packet> begun =
        keeper_->ask({{"op", "begin"}, {"vault", spec_.id}, {"serial", serial_}, {"step", step}}, kAnswerLimit);
    if (!begun) return "a keeper is gone";
    const auto buffer = begun->body.at("buffer").get<size_t>();
    if (!write_blob(saved, maps_.at(buffer).part(offset_, room_))) return "a rank's state did not fit into its memory";
    if (!keeper_->tell({{"op", "filled"}, {"vault", spec_.id}, {"serial", serial_}, {"rank", group_->rank()}})) return "a keeper is gone";
    return {};
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::bad_input) throw;
    return error.what();
  }
}

void MemorySnapshots::degraded(const Job& job, comm::World& world, const std::string& why) {
  group_ = nullptr;
  spec_ = {};
  if (std::exchange(reduced_, true) || world.rank() != 0) return;
  world.log().warn("snapshots in memory: {}: protection is reduced until the keepers have met again; training goes on", why);
  base::RunEvents(job.config.out).write("protection", {{"state", "reduced"}, {"step", job.progress.steps_done}, {"why", why}});
}

void MemorySnapshots::save(Job& job, comm::World& world) {
  if (!open(job, world)) return;
  const std::chrono::nanoseconds began = world.wall().now();
  const auto traced = job.instruments.trace->span("save in memory", "snapshot");
  comm::Group& everyone = world.everyone();
  RankSnapshot saved = collect(job);
  make_own(saved);
  const int64_t need = blob_bytes(saved);
  // What every rank says before anything is done: is its keeper there, and does its state fit?
  int64_t word[2] = {group_ && keeper_->alive() ? 0 : 1, spec_.id.empty() || need > room_ ? 1 : 0};
  everyone.all_reduce({word, 2, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "snapshot in memory"}).wait_host();
  std::string trouble;
  if (word[0] != 0) {
    if (group_ || spec_.id.size()) degraded(job, world, "the keeper of a node is gone");
    if (trouble = meet(job, world); trouble.empty()) {
      const KeeperGroup::Newest newest = group_->newest();
      serial_ = std::max(serial_, group_->last_serial());
      found_ = newest.version;
      trouble = group_->adopt(found_ ? &*found_ : nullptr);
      word[1] = 1;
    }
  } else {
    trouble = group_->agree(group_->leads() ? wait_for_commit() : "");
  }
  if (trouble.empty() && word[1] != 0) trouble = lay_out(need, options_of(job));
  if (trouble.empty()) {
    ++serial_;
    trouble = write(saved, job.progress.steps_done);  // what one rank could not write leaves the version unfinished: the next save notices
    if (!trouble.empty()) world.log().warn("rank {}: snapshot of step {} in memory: {}", world.rank(), job.progress.steps_done, trouble);
    if (trouble.empty() && std::exchange(reduced_, false) && world.rank() == 0) {
      world.log().warn("snapshots in memory: the keepers of {} nodes have met again: protection is complete with this snapshot",
                       group_->sites());
      base::RunEvents(job.config.out).write("protection", {{"state", "full"}, {"step", job.progress.steps_done}});
    }
  } else {
    degraded(job, world, trouble);
  }
  held_up_ += world.wall().now() - began;
}

}  // namespace cairn::train
