// What a machine that dies at any moment leaves on its disk, for tests and proofs of what is written.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/files/disk.h"

namespace cairn::base {

// The real disk, on which every change below `root` is remembered. What is there at the start counts as safe.
//
//   a process dies    all that was done stays; of the call that was cut short, a part
//   a machine dies    writes since the last sync of their file are lost, torn or kept, each by itself, in any order; likewise new names and
//                     renames since the last sync of their folder. A file may be long already and have zeros where its bytes were lost
class RecordingDisk final : public Disk {
 public:
  // `lies`: sync and sync_folder do nothing, as on a disk that says it has what it has not.
  explicit RecordingDisk(std::filesystem::path root, bool lies = false);

  int create(const std::filesystem::path& path) const override;
  int append(const std::filesystem::path& path) const override;
  int open_shared(const std::filesystem::path& path) const override;
  int64_t write(int file, std::span<const std::byte> bytes) const override;
  int64_t write_at(int file, std::span<const std::byte> bytes, int64_t offset) const override;
  int resize(int file, int64_t bytes) const override;
  int sync(int file) const override;
  int close(int file) const override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) const override;
  int remove(const std::filesystem::path& path) const override;
  int sync_folder(const std::filesystem::path& folder) const override;
  int64_t free_bytes(const std::filesystem::path& folder) const override { return real_disk().free_bytes(folder); }

  // So many changes were made.
  size_t changes() const { return changes_.size(); }
  // Writes the tree that is left after a crash during change number `done` (or after the last) into `folder`, which must not exist.
  enum class Dies { process, machine };
  using Draw = std::function<uint64_t()>;  // the next random number
  void after_crash(size_t done, Dies dies, const Draw& random, const std::filesystem::path& folder) const;

 private:
  enum class Kind { create, write, resize, sync, rename, remove, sync_folder };
  struct Change {
    Kind kind{};
    size_t inode = 0;
    int64_t offset = 0;  // resize: the length
    std::vector<std::byte> bytes = {};
    std::string name = {}, to = {};  // below the root
  };
  using Content = std::vector<std::byte>;
  struct Tree {
    std::map<std::string, size_t> names;  // -> inode
    std::vector<Content> inodes;
  };

  std::string name_of(const std::filesystem::path& path) const { return path.lexically_relative(root_).string(); }
  int opened(int file, const std::filesystem::path& path, bool is_new, int64_t offset) const;
  void add(Change change) const;
  bool is_safe(size_t index, size_t done) const;
  static void apply(const Change& change, Tree& tree);
  static void apply_torn(const Change& change, Tree& tree, const Draw& random);
  static void apply_name(const Change& change, Tree& tree);

  const std::filesystem::path root_;
  const bool lies_;
  Tree start_;
  mutable std::mutex mutex_;
  mutable size_t inodes_ = 0;
  mutable std::map<std::string, size_t> names_;
  struct Open {
    size_t inode = 0;
    int64_t at = 0;  // of the next write
  };
  mutable std::map<int, Open> open_;
  mutable std::vector<Change> changes_;
};

}  // namespace cairn::base
