#include "train/state/transfer_snapshot.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/world.h"
#include "snapshot/copy.h"
#include "snapshot/folder.h"
#include "snapshot/run_lock.h"

namespace cairn::train {
namespace {

constexpr comm::Label kTransfer{comm::Purpose::state, "a snapshot"};
constexpr int64_t kChunkBytes = 8 << 20;

// Whether this rank writes a copy now: the first rank of its step group that lacks the snapshot.
bool writes_copy(const SnapshotTransfer& transfer, int rank) {
  if (!transfer.lacks[static_cast<size_t>(rank)]) return false;
  for (int before = 0; before < rank; ++before)
    if (transfer.lacks[static_cast<size_t>(before)] &&
        transfer.group_of[static_cast<size_t>(before)] == transfer.group_of[static_cast<size_t>(rank)])
      return false;
  return true;
}

// Sends the snapshot from one rank to all; those with a run directory here write it. Returns its bytes.
int64_t send_and_write(comm::World& world, int source, const std::string& folder, const std::string& into) {
  comm::Group& all = world.everyone();
  std::optional<snapshot::CopyReader> reader;
  std::string manifest;
  if (world.rank() == source) manifest = reader.emplace(folder).manifest();
  std::array<int64_t, 2> lengths{static_cast<int64_t>(manifest.size()), reader ? reader->bytes() : 0};
  all.broadcast({lengths.data(), 2, comm::Dtype::i64}, source, kTransfer).wait_host();
  manifest.resize(static_cast<size_t>(lengths[0]));
  all.broadcast({manifest.data(), lengths[0], comm::Dtype::u8}, source, kTransfer).wait_host();
  std::optional<snapshot::CopyWriter> writer;
  if (!into.empty()) writer.emplace(into, manifest, base::real_disk());
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(kChunkBytes, lengths[1])));
  for (int64_t left = lengths[1]; left > 0; left -= static_cast<int64_t>(chunk.size())) {
    chunk.resize(static_cast<size_t>(std::min(kChunkBytes, left)));
    if (reader) reader->read(chunk);
    all.broadcast({chunk.data(), static_cast<int64_t>(chunk.size()), comm::Dtype::u8}, source, kTransfer).wait_host();
    if (writer) writer->write(chunk);
  }
  if (writer) writer->commit();
  return lengths[1];
}

// The copy, if this rank sees it.
std::optional<snapshot::OpenSnapshot> open_copy(const SnapshotTransfer& transfer, const std::string& run_dir) {
  const std::filesystem::path folder = snapshot::step_folder(run_dir, transfer.step);
  if (!base::path_exists(folder)) return std::nullopt;
  try {
    snapshot::OpenSnapshot found = snapshot::open(folder);
    if (base::checksum(found.text("training/state.json")) == transfer.state_checksum) return found;
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::corrupt_file) throw;
  }
  return std::nullopt;  // an own one of this step, or a damaged one
}

void gather_lacking(comm::World& world, bool lacks, std::vector<bool>& all) {
  uint8_t mine = lacks ? 1 : 0;
  std::vector<uint8_t> gathered(all.size());
  world.everyone()
      .all_gather({gathered.data(), world.size(), comm::Dtype::u8}, {&mine, 1, comm::Dtype::u8},
                  {comm::Purpose::control, "copied snapshots"})
      .wait_host();
  for (size_t rank = 0; rank < all.size(); ++rank) all[rank] = gathered[rank] != 0;
}

// "island 1", "islands 1, 2": the islands of the ranks that lack the snapshot.
std::string receivers_of(const SnapshotTransfer& transfer, const std::vector<int>& islands) {
  std::vector<size_t> names;
  for (size_t island = 0; island < islands.size(); ++island)
    for (size_t rank = 0; rank < transfer.lacks.size(); ++rank)
      if (transfer.lacks[rank] && transfer.group_of[rank] == islands[island] && (names.empty() || names.back() != island))
        names.push_back(island);
  return fmt::format("{} {}", names.size() == 1 ? "island" : "islands", fmt::join(names, ", "));
}

}  // namespace

snapshot::OpenSnapshot transfer_snapshot(comm::World& world, SnapshotTransfer transfer, std::optional<snapshot::OpenSnapshot> mine,
                                         const std::string& run_dir) {
  const auto me = static_cast<size_t>(world.rank());
  std::vector<int> islands = transfer.group_of;  // their first ranks, in order
  std::sort(islands.begin(), islands.end());
  islands.erase(std::unique(islands.begin(), islands.end()), islands.end());
  const auto from = std::find(islands.begin(), islands.end(), transfer.group_of[static_cast<size_t>(transfer.source)]) - islands.begin();
  const std::string receivers = receivers_of(transfer, islands);
  const std::string folder = world.rank() == transfer.source ? mine->path() : "";
  if (transfer.lacks[me]) mine.reset();
  int64_t bytes = 0;
  while (std::find(transfer.lacks.begin(), transfer.lacks.end(), true) != transfer.lacks.end()) {
    const bool writes = writes_copy(transfer, world.rank());
    std::unique_ptr<snapshot::RunLock> lock;  // the first island's directory is held by the run
    if (writes && transfer.group_of[me] != 0) lock = std::make_unique<snapshot::RunLock>(run_dir);
    bytes = send_and_write(world, transfer.source, folder, writes ? run_dir : "");
    world.everyone().barrier("copied snapshots").wait_host();  // every copy is in place
    if (!mine) mine = open_copy(transfer, run_dir);
    if (writes && !mine) base::fail_corrupt(snapshot::step_folder(run_dir, transfer.step).string(), "the copy cannot be read back");
    gather_lacking(world, !mine, transfer.lacks);
  }
  if (world.rank() == 0)
    world.log().info("{} had no snapshot of step {} and got that of island {} ({}): all islands go on after step {}", receivers,
                     transfer.step, from, base::human_bytes(bytes), transfer.step);
  return *mine;
}

}  // namespace cairn::train
