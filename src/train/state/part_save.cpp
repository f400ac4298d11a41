#include "train/state/part_save.h"

#include <chrono>
#include <filesystem>
#include <optional>

#include "base/check.h"
#include "base/files.h"
#include "base/files/disk.h"
#include "kernels/aten.h"
#include "snapshot/rank_part.h"
#include "snapshot/remover.h"

namespace cairn::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kVotes = ".votes";
constexpr auto kVoteLimit = std::chrono::minutes(10);  // for the slowest rank
constexpr auto kLastVotes = std::chrono::seconds(5);   // once the run has ended: the others end their writes too, unless they are gone
constexpr int64_t kVoteBytesMax = 256 << 20;

// Host memory for one block after the other, where the bytes of a block lie in their page as they will in the file: direct I/O takes no
// others.
class PageBuffer {
 public:
  at::Tensor copy(const snapshot::WriteBlock& block) {
    const auto bytes = static_cast<int64_t>(block.data.nbytes());
    const int64_t in_file = block.cells.empty() ? 0 : block.cells.front().cell.offset;
    if (memory_.numel() < bytes + 2 * base::kDirectBytes) memory_ = at::empty({bytes + 2 * base::kDirectBytes}, at::kByte);
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory_.const_data_ptr()));
    const int64_t skipped = ((in_file - address) % base::kDirectBytes + base::kDirectBytes) % base::kDirectBytes;
    const at::Tensor room = memory_.narrow(0, skipped, bytes);
    room.copy_(block.data.view(at::kByte));
    return room;
  }

 private:
  at::Tensor memory_;
};

std::string vote_file(int rank) { return fmt::format("rank-{}.json", rank); }
std::string failure_file(int rank) { return fmt::format("rank-{}.failed", rank); }

}  // namespace

void SaveCancel::request() {
  const std::scoped_lock lock(mutex_);
  requested_ = true;
  changed_.notify_all();
}

bool SaveCancel::wait_for(std::chrono::nanoseconds at_most) const {
  std::unique_lock lock(mutex_);
  if (!requested_) return changed_.wait_for(lock, at_most, [&] { return requested_; });
  changed_.wait_for(lock, at_most);
  return true;
}

void PartSave::begin_votes() const { base::make_folder(fs::path(parts_.folder) / kVotes); }

std::unique_ptr<snapshot::PartWriter> PartSave::make_writer() const {
  return std::make_unique<snapshot::PartWriter>(parts_.folder, parts_.saved.part, parts_.disk,
                                                snapshot::PartWriterOptions{.open_later = true, .direct = parts_.direct});
}

void PartSave::write() {
  begin_votes();
  try {
    write_part();
  } catch (const std::exception& error) {
    vote_failed(parts_.rank, error.what());
    throw;
  }
  parts_.saved.part = {};  // frees what was written
}

void PartSave::vote(const snapshot::Vote& of) const {
  begin_votes();
  base::write_atomically(fs::path(parts_.folder) / kVotes / vote_file(of.rank), std::string_view(snapshot::format_vote(of)), parts_.disk);
}

void PartSave::vote_failed(int rank, const std::string& why) const noexcept {
  const fs::path file = fs::path(parts_.folder) / kVotes / failure_file(rank);
  try {
    base::write_atomically(file, std::string_view(why), parts_.disk);
  } catch (const std::exception&) {  // no room for a word: an empty file says enough, or else commit misses the vote
    if (const int empty = parts_.disk.create(file); empty >= 0) parts_.disk.close(empty);
  }
}

std::unique_ptr<snapshot::PartWriter> PartSave::writer_of(const RankSnapshot& other) const {
  return std::make_unique<snapshot::PartWriter>(parts_.folder, other.part, parts_.disk);
}

void PartSave::write_part() {
  const std::unique_ptr<snapshot::PartWriter> writer = make_writer();
  writer->open();
  PageBuffer buffer;
  for (const snapshot::WriteBlock& block : writer->blocks()) {
    const auto there = mesh::hold(parts_.swapper, block.data, mesh::TensorSwapper::Access::read);
    const at::Tensor host = parts_.direct ? buffer.copy(block) : block.data.cpu();
    writer->write(block, {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  vote(writer->finish());
}

bool PartSave::wait_for_votes(const SaveCancel& cancelled) const {
  const fs::path folder = fs::path(parts_.folder) / kVotes;
  const auto limit = std::chrono::steady_clock::now() + kVoteLimit;
  std::optional<std::chrono::steady_clock::time_point> given_up;
  for (int rank = 0; rank < parts_.ranks; ++rank)
    for (auto pause = std::chrono::microseconds(200);
         !base::path_exists(folder / vote_file(rank)) && !base::path_exists(folder / failure_file(rank));
         pause = std::min(2 * pause, std::chrono::microseconds(20'000))) {
      if (cancelled.wait_for(pause) && !given_up) given_up = std::chrono::steady_clock::now() + kLastVotes;
      if (given_up && std::chrono::steady_clock::now() > *given_up) return false;
      if (std::chrono::steady_clock::now() > limit)
        throw Error(Error::Kind::disk,
                    fmt::format("rank {} has not written its part of {} within {} minutes", rank, parts_.folder, kVoteLimit.count()));
    }
  return true;
}

// What is wrong with a vote costs this save, not the run.
snapshot::Vote PartSave::read_vote(int rank) const {
  const fs::path folder = fs::path(parts_.folder) / kVotes, vote = folder / vote_file(rank), failure = folder / failure_file(rank);
  if (base::path_exists(failure)) {
    const std::string why = base::read_file(failure, 1 << 16);
    throw Error(Error::Kind::disk, fmt::format("rank {}: {}", rank, why.empty() ? "could write nothing, not even why" : why));
  }
  if (!base::path_exists(vote)) throw Error(Error::Kind::disk, fmt::format("rank {} could not write its part of {}", rank, parts_.folder));
  snapshot::Vote found = snapshot::parse_vote(base::read_file(vote, kVoteBytesMax), vote.string());
  if (found.rank != rank) base::fail_corrupt(vote.string(), fmt::format("it is the vote of rank {}", found.rank));
  return found;
}

void PartSave::commit() {
  CAIRN_CHECK(parts_.saved.rest, "the first rank has no state of its own");
  try {
    std::vector<snapshot::Vote> votes;
    for (int rank = 0; rank < parts_.ranks; ++rank) votes.push_back(read_vote(rank));
    fs::remove_all(fs::path(parts_.folder) / kVotes);
    snapshot::commit_parts(parts_.run_dir, *parts_.staging, std::move(*parts_.saved.rest), votes,
                           {.newest = parts_.keep, .remover = parts_.remover}, parts_.disk);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::corrupt_file) throw;
    throw Error(Error::Kind::disk, error.what());
  }
}

}  // namespace cairn::train
