#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "mesh/swap/tensor_swapper.h"
#include "snapshot/staging.h"
#include "train/state/restore.h"

namespace cairn::base {
class Disk;
}

namespace cairn::train {

// Tells a thread that the run has ended.
class SaveCancel {
 public:
  void request();
  bool wait_for(std::chrono::nanoseconds at_most) const;  // waits so long, or until it is requested; true: it was

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool requested_ = false;
};

// One rank's share of one save, from the opened files to the commit. Ranks tell each other by files in the staging folder, which all of
// them see, so it may run on a thread of its own while training sends messages:
//
//   every rank      writes its part, then .votes/rank-N.json: what it wrote, with checksums; or .votes/rank-N.failed: why it could not
//   the first rank  commits once all votes are there (snapshot::commit_parts), or deletes the folder if one failed
class PartSave {
 public:
  struct Parts {
    std::string run_dir, folder;  // the staging folder
    int rank = 0, ranks = 1;      // of the step group
    int64_t keep = 1;
    std::unique_ptr<snapshot::StagingFolder> staging;  // on the first rank
    RankSnapshot saved;
    const base::Disk& disk;
    bool direct = false;                     // past the page cache where the file system can
    snapshot::Remover* remover = nullptr;    // of snapshots that are no longer kept
    mesh::TensorSwapper* swapper = nullptr;  // of what is saved and lies in a tier; then only the training thread writes. Null: nothing
  };
  explicit PartSave(Parts parts) : parts_(std::move(parts)) {}

  // Writes this rank's part, and votes. Throws Error::Kind::disk.
  void write();
  // The same in steps, for blocks that come one by one: the writer of this part, whose files are not open yet; the folder of votes; then
  // one vote. vote_failed writes what it can.
  std::unique_ptr<snapshot::PartWriter> make_writer() const;
  void begin_votes() const;
  void vote(const snapshot::Vote& of) const;
  void vote_failed(int rank, const std::string& why) const noexcept;
  int rank() const { return parts_.rank; }
  bool first() const { return parts_.rank == 0; }
  // On the first rank, waits until all ranks have voted; for a thread. Once it is cancelled it waits for seconds only, since a rank may
  // be gone. Returns whether all have.
  bool wait_for_votes(const SaveCancel& cancelled) const;
  // A writer for a rank that does not see the folder (folder_view.h). This rank votes for it.
  std::unique_ptr<snapshot::PartWriter> writer_of(const RankSnapshot& other) const;
  const RankSnapshot& saved() const { return parts_.saved; }

  // On the first rank, once the others are through with write(). Throws Error::Kind::disk for what another rank could not write.
  void commit();

 private:
  void write_part();
  snapshot::Vote read_vote(int rank) const;

  Parts parts_;
};

}  // namespace cairn::train
