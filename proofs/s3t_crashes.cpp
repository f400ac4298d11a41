// Deletions that are killed, by kill -9 and by machines that die.
#include <csignal>
#include <filesystem>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/recording_disk.h"
#include "proofs/s3t_parts.h"
#include "study/claims.h"
#include "unlearn/audit.h"
#include "unlearn/delete_records.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;
using unlearn::Store;

// A disk on which the process is killed, by SIGKILL, before one of its operations.
class KillingDisk final : public base::Disk {
 public:
  explicit KillingDisk(int64_t after) : left_(after) {}
  int create(const fs::path& path) const override { return step(), disk_.create(path); }
  int append(const fs::path& path) const override { return step(), disk_.append(path); }
  int open_shared(const fs::path& path) const override { return step(), disk_.open_shared(path); }
  int64_t write(int file, std::span<const std::byte> bytes) const override { return step(), disk_.write(file, bytes); }
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override {
    return step(), disk_.write_at(file, bytes, offset);
  }
  int resize(int file, int64_t bytes) const override { return step(), disk_.resize(file, bytes); }
  int sync(int file) const override { return step(), disk_.sync(file); }
  int close(int file) const override { return step(), disk_.close(file); }
  int rename(const fs::path& from, const fs::path& to) const override { return step(), disk_.rename(from, to); }
  int remove(const fs::path& path) const override { return step(), disk_.remove(path); }
  int sync_folder(const fs::path& folder) const override { return step(), disk_.sync_folder(folder); }
  int64_t free_bytes(const fs::path& folder) const override { return disk_.free_bytes(folder); }

 private:
  void step() const {
    if (left_-- == 0) ::kill(::getpid(), SIGKILL);
  }
  const base::Disk& disk_ = base::real_disk();
  mutable int64_t left_;
};

// Whether something that is served depends on this record.
bool serves(const Store& store, int64_t record) {
  const unlearn::Place place = store.spec().partition().place_of(record);
  for (const std::string& name : served_names(store))
    if (unlearn::parse_artifact_name(name)->depends_on(place.shard, place.slice)) return true;
  return false;
}

}  // namespace

// 6. kill -9 before every operation of a deletion; and machines that die.
void prove_s3t_crashes(const ProofOptions& options, const S3tStores& stores, const Store& whole, int64_t record, Findings& findings) {
  int64_t killed = 0, between = 0, served = 0, unclean = 0;
  for (int64_t after = 0;; ++after) {
    const Store store = stores.copy(whole, "killed");
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        unlearn::delete_records(store, std::vector<int64_t>{record}, {}, KillingDisk(after));
      } catch (...) {
        ::_exit(3);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFSIGNALED(status)) break;  // there was no such operation any more
    ++killed;
    if (store.deleted().empty()) continue;  // the request was not answered: nothing was deleted
    between += unlearn::leftovers(store) != unlearn::Purged{} ? 1 : 0;
    served += serves(store, record) ? 1 : 0;
    unlearn::purge(store);
    unclean += unlearn::audit(store).trouble.empty() ? 0 : 1;
  }
  findings.at_least("6. processes killed by kill -9, one before each file operation of a deletion", 0, static_cast<double>(killed), 10);
  findings.at_least("6. of these, between the log and the end of the switch", 0, static_cast<double>(between), 5);
  findings.at_most("6. stores that then serve what was deleted", 0, static_cast<double>(served), 0);
  findings.at_most("6. stores that are not clean after the next command", 0, static_cast<double>(unclean), 0);

  const Store store = stores.copy(whole, "crashed");
  const base::RecordingDisk disk(store.folder());
  size_t answered = 0;
  unlearn::delete_records(
      store, std::vector<int64_t>{record}, [&](const unlearn::Deleted&) { answered = disk.changes(); }, disk);
  std::mt19937_64 random(options.seed);
  int64_t states = 0, wrong = 0;
  for (const int64_t trials = options.full ? 1000 : 200; states < trials; ++states) {
    const size_t done = random() % (disk.changes() + 1);
    const fs::path left = fs::path(options.scratch) / "left";
    fs::remove_all(left);
    disk.after_crash(
        done, base::RecordingDisk::Dies::machine, [&] { return random(); }, left);
    for (const char* folder : {"work", "artifacts", "slices"}) fs::create_directories(left / folder);
    try {
      const Store restarted(left);
      const bool deleted = !restarted.deleted().empty();
      wrong += (done >= answered && !deleted) || (deleted && serves(restarted, record)) ? 1 : 0;
    } catch (const Error&) {
      ++wrong;
    }
  }
  findings.at_most(fmt::format("6. machines that die: of {} states of the disk, those that serve what was deleted, or forget it", states),
                   0, static_cast<double>(wrong), 0);
}

}  // namespace cairn::study
