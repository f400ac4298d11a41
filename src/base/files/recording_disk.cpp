#include "base/files/recording_disk.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/files.h"

namespace cairn::base {

namespace fs = std::filesystem;

namespace {

constexpr size_t kSector = 512;

std::string folder_of(const std::string& name) { return fs::path(name).parent_path().string(); }

void put(std::vector<std::byte>& content, int64_t offset, std::span<const std::byte> bytes) {
  const auto begin = static_cast<size_t>(offset);
  if (content.size() < begin + bytes.size()) content.resize(begin + bytes.size());
  std::copy(bytes.begin(), bytes.end(), content.begin() + static_cast<std::ptrdiff_t>(begin));
}

}  // namespace

RecordingDisk::RecordingDisk(fs::path root, bool lies) : root_(std::move(root)), lies_(lies) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root_)) {
    if (!entry.is_regular_file()) continue;
    const std::string bytes = read_file(entry.path(), int64_t{1} << 30);
    start_.names[name_of(entry.path())] = start_.inodes.size();
    start_.inodes.emplace_back(as_bytes(bytes).begin(), as_bytes(bytes).end());
  }
  names_ = start_.names;
  inodes_ = start_.inodes.size();
}

void RecordingDisk::add(Change change) const { changes_.push_back(std::move(change)); }

int RecordingDisk::opened(int file, const fs::path& path, bool is_new, int64_t offset) const {
  if (file < 0) return file;
  const std::scoped_lock lock(mutex_);
  const std::string name = name_of(path);
  if (is_new || !names_.contains(name)) {
    names_[name] = inodes_;
    add({.kind = Kind::create, .inode = inodes_, .name = name});
    ++inodes_;
  }
  open_[file] = {names_.at(name), offset};
  return file;
}

int RecordingDisk::create(const fs::path& path) const { return opened(real_disk().create(path), path, true, 0); }

int RecordingDisk::append(const fs::path& path) const {
  std::error_code missing;
  const auto bytes = fs::file_size(path, missing);
  return opened(real_disk().append(path), path, static_cast<bool>(missing), missing ? 0 : static_cast<int64_t>(bytes));
}

int RecordingDisk::open_shared(const fs::path& path) const {
  const bool is_new = !fs::exists(path);
  return opened(real_disk().open_shared(path), path, is_new, 0);
}

int64_t RecordingDisk::write(int file, std::span<const std::byte> bytes) const {
  const int64_t n = real_disk().write(file, bytes);
  if (n <= 0) return n;
  const std::scoped_lock lock(mutex_);
  Open& open = open_.at(file);
  add({.kind = Kind::write, .inode = open.inode, .offset = open.at, .bytes = {bytes.begin(), bytes.begin() + n}});
  open.at += n;
  return n;
}

int64_t RecordingDisk::write_at(int file, std::span<const std::byte> bytes, int64_t offset) const {
  const int64_t n = real_disk().write_at(file, bytes, offset);
  if (n <= 0) return n;
  const std::scoped_lock lock(mutex_);
  add({.kind = Kind::write, .inode = open_.at(file).inode, .offset = offset, .bytes = {bytes.begin(), bytes.begin() + n}});
  return n;
}

int RecordingDisk::resize(int file, int64_t bytes) const {
  const int result = real_disk().resize(file, bytes);
  const std::scoped_lock lock(mutex_);
  if (result == 0) add({.kind = Kind::resize, .inode = open_.at(file).inode, .offset = bytes});
  return result;
}

int RecordingDisk::sync(int file) const {
  if (lies_) return 0;
  const std::scoped_lock lock(mutex_);
  add({.kind = Kind::sync, .inode = open_.at(file).inode});
  return 0;
}

int RecordingDisk::close(int file) const {
  const std::scoped_lock lock(mutex_);
  open_.erase(file);
  return real_disk().close(file);
}

int RecordingDisk::rename(const fs::path& from, const fs::path& to) const {
  const int result = real_disk().rename(from, to);
  if (result != 0) return result;
  const std::scoped_lock lock(mutex_);
  add({.kind = Kind::rename, .name = name_of(from), .to = name_of(to)});
  Tree tree{names_, {}};
  apply_name(changes_.back(), tree);
  names_ = std::move(tree.names);
  return result;
}

int RecordingDisk::remove(const fs::path& path) const {
  const int result = real_disk().remove(path);
  if (result != 0) return result;
  const std::scoped_lock lock(mutex_);
  add({.kind = Kind::remove, .name = name_of(path)});
  names_.erase(name_of(path));
  return result;
}

int RecordingDisk::sync_folder(const fs::path& folder) const {
  if (lies_) return 0;
  const std::scoped_lock lock(mutex_);
  const std::string name = name_of(folder);
  add({.kind = Kind::sync_folder, .name = name == "." ? "" : name});  // as folder_of says of names at the root
  return 0;
}

// Whether a change is on disk after the change `done`: its file or its folder was synced in between.
bool RecordingDisk::is_safe(size_t index, size_t done) const {
  const Change& change = changes_[index];
  const bool is_data = change.kind == Kind::write || change.kind == Kind::resize;
  for (size_t i = index + 1; i < done; ++i) {
    const Change& later = changes_[i];
    if (is_data && later.kind == Kind::sync && later.inode == change.inode) return true;
    // A folder may have been renamed meanwhile: then its old name is no longer synced, and the change counts as not safe.
    if (!is_data && later.kind == Kind::sync_folder && later.name == folder_of(change.to.empty() ? change.name : change.to)) return true;
  }
  return false;
}

// A name, or all names below a folder, get new names. What cannot be (a folder in the place of one that is not empty) does not happen.
void RecordingDisk::apply_name(const Change& change, Tree& tree) {
  if (change.kind == Kind::remove) {
    tree.names.erase(change.name);
    return;
  }
  if (change.kind == Kind::create) {
    tree.names[change.name] = change.inode;
    return;
  }
  const auto file = tree.names.find(change.name);
  if (file != tree.names.end()) {
    const size_t inode = file->second;
    tree.names.erase(file);
    tree.names[change.to] = inode;
    return;
  }
  const std::string from = change.name + "/", to = change.to + "/";
  const auto taken = tree.names.lower_bound(to);
  if (taken != tree.names.end() && taken->first.starts_with(to)) return;
  std::vector<std::pair<std::string, size_t>> moved;
  for (auto it = tree.names.lower_bound(from); it != tree.names.end() && it->first.starts_with(from); it = tree.names.erase(it))
    moved.emplace_back(to + it->first.substr(from.size()), it->second);
  tree.names.insert(moved.begin(), moved.end());
}

void RecordingDisk::apply(const Change& change, Tree& tree) {
  if (change.kind == Kind::write)
    put(tree.inodes[change.inode], change.offset, change.bytes);
  else if (change.kind == Kind::resize)
    tree.inodes[change.inode].resize(static_cast<size_t>(change.offset));
  else if (change.kind != Kind::sync && change.kind != Kind::sync_folder)
    apply_name(change, tree);
}

// Some of its sectors, or the first of its bytes.
void RecordingDisk::apply_torn(const Change& change, Tree& tree, const Draw& random) {
  if (change.kind != Kind::write) return;
  const std::span<const std::byte> bytes = change.bytes;
  if (random() % 2 == 0) return put(tree.inodes[change.inode], change.offset, bytes.first(random() % (bytes.size() + 1)));
  for (size_t at = 0; at < bytes.size(); at += kSector)
    if (random() % 2 == 0)
      put(tree.inodes[change.inode], change.offset + static_cast<int64_t>(at), bytes.subspan(at, std::min(kSector, bytes.size() - at)));
}

void RecordingDisk::after_crash(size_t done, Dies dies, const Draw& random, const fs::path& folder) const {
  Tree tree = start_;
  tree.inodes.resize(inodes_);
  std::vector<size_t> loose;  // writes that are kept, lost or torn, in any order
  for (size_t i = 0; i < done; ++i) {
    const Change& change = changes_[i];
    const bool is_data = change.kind == Kind::write || change.kind == Kind::resize;
    if (dies == Dies::process || is_safe(i, done)) {
      apply(change, tree);
    } else if (is_data) {
      loose.push_back(i);
    } else if (random() % 2 == 0) {
      apply(change, tree);
    }
  }
  for (size_t left = loose.size(); left > 1; --left) std::swap(loose[left - 1], loose[random() % left]);
  for (const size_t i : loose) {
    const uint64_t fate = random() % 3;
    if (fate == 0) apply(changes_[i], tree);
    if (fate == 1) apply_torn(changes_[i], tree, random);
  }
  if (done < changes_.size()) apply_torn(changes_[done], tree, random);  // cut short
  for (const auto& [name, inode] : tree.names) {
    const fs::path path = folder / name;
    fs::create_directories(path.parent_path());
    const Content& content = tree.inodes[inode];
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  }
}

}  // namespace cairn::base
