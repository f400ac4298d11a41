// Opening a snapshot: the manifest first, then every file against it.
#include <filesystem>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr size_t kTextBytesMax = 64 << 20;
constexpr size_t kNamesShown = 5;
constexpr int64_t kSmallBytes = 16 << 20;

std::string text_of(const base::MappedFile& file, size_t bytes_max) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > bytes_max) base::fail_corrupt(file.path(), fmt::format("{} bytes, at most {} are read", bytes.size(), bytes_max));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::shared_ptr<const base::MappedFile> file_of_length(const std::string& path, int64_t expected) {
  std::shared_ptr<const base::MappedFile> file = base::MappedFile::open(path);
  const auto bytes = static_cast<int64_t>(file->bytes().size());
  if (bytes != expected) base::fail_corrupt(path, fmt::format("{} bytes long, the manifest says {}", bytes, expected));
  return file;
}

std::shared_ptr<const base::MappedFile> checked_file(const std::string& path, const FileRecord& expected) {
  std::shared_ptr<const base::MappedFile> file = file_of_length(path, expected.bytes);
  const uint64_t found = base::checksum(file->bytes());
  if (found != expected.checksum)
    base::fail_corrupt(path, fmt::format("checksum {:016x}, the manifest says {:016x}", found, expected.checksum));
  return file;
}

std::string described(SafetensorsDtype dtype, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", word_of(dtype), fmt::join(shape, ", "));
}

// "; missing there: a, b and 3 more", or nothing.
std::string listed(const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return {};
  const size_t shown = std::min(items.size(), kNamesShown);
  const std::string more = items.size() > shown ? fmt::format(" and {} more", items.size() - shown) : "";
  return fmt::format("; {}: {}{}", title, fmt::join(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(shown), ", "), more);
}

}  // namespace

std::vector<std::string> OpenSnapshot::sections() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : sections_) names.push_back(name);
  return names;
}

uint64_t OpenSnapshot::checksum(const std::string& section) const {
  const auto found = checksums_.find(section);
  return found == checksums_.end() ? 0 : found->second;
}

const Safetensors& OpenSnapshot::section(const std::string& name) const {
  const auto found = sections_.find(name);
  if (found == sections_.end()) base::fail_input("{}: no section \"{}\" (it has {})", path_, name, fmt::join(sections(), ", "));
  return found->second;
}

const std::string& OpenSnapshot::text(const std::string& file) const {
  const auto found = texts_.find(file);
  if (found == texts_.end()) base::fail_input("{}: no file {} in this snapshot", path_, file);
  return found->second;
}

void OpenSnapshot::load_into(const std::string& section_name, const mesh::NamedTensors& into) const {
  std::vector<TensorRequest> wanted;
  for (const auto& [name, tensor] : into)
    wanted.push_back({name, tensor.sizes().vec(), tensor.scalar_type(), [to = tensor](const at::Tensor& whole) { to.copy_(whole); }});
  load(section_name, wanted);
}

void OpenSnapshot::load(const std::string& section_name, const std::vector<TensorRequest>& wanted) const {
  const Safetensors& saved = section(section_name);
  std::unordered_map<std::string, const TensorEntry*> unread;
  for (const TensorEntry& entry : saved.entries()) unread.emplace(entry.name, &entry);
  std::vector<std::pair<const TensorEntry*, const TensorRequest*>> copies;
  std::vector<std::string> missing, unlike, unexpected;
  for (const TensorRequest& one : wanted) {
    const auto found = unread.find(one.name);
    if (found == unread.end()) {
      missing.push_back(one.name);
      continue;
    }
    const TensorEntry& entry = *found->second;
    if (scalar_type(entry.dtype) != one.dtype || entry.shape != one.shape) {
      unlike.push_back(
          fmt::format("{} is {} there, {} here", one.name, described(entry.dtype, entry.shape), described(dtype_of(one.dtype), one.shape)));
    }
    copies.emplace_back(&entry, &one);
    unread.erase(found);
  }
  for (const TensorEntry& entry : saved.entries()) {
    if (unread.contains(entry.name)) unexpected.push_back(entry.name);
  }
  if (const std::string trouble = listed("missing there", missing) + listed("unknown here", unexpected) + listed("different", unlike);
      !trouble.empty()) {
    base::fail_input("{}: does not fit what it is loaded into{}", saved.path(), trouble);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [entry, one] : copies)
    if (one->take) one->take(saved.view(*entry));
}

namespace {

Manifest read_manifest(const fs::path& folder) {
  const std::string path = folder / kManifestFile;
  Manifest manifest = parse_manifest(text_of(*base::MappedFile::open(path), kManifestBytesMax), path);
  if (const auto named = parse_step_folder(folder); named && named->step != manifest.step)
    base::fail_corrupt(path, fmt::format("step {}, the folder's name says {}", manifest.step, named->step));
  return manifest;
}

// Checks lengths, and checksums of small files.
void check_lightly(const fs::path& folder) {
  for (const auto& [name, expected] : read_manifest(folder).files)
    expected.bytes <= kSmallBytes ? checked_file(folder / name, expected) : file_of_length(folder / name, expected.bytes);
}

[[noreturn]] void fail_all_damaged(const std::string& run_dir, size_t count, const std::string& newest_trouble) {
  throw Error(Error::Kind::corrupt_file,
              fmt::format("{}: none of its {} snapshots is whole; the newest: {}", run_dir, count, newest_trouble));
}

}  // namespace

OpenSnapshot open(const std::string& path) {
  const fs::path folder = fs::path(path).has_filename() ? fs::path(path) : fs::path(path).parent_path();
  const Manifest manifest = read_manifest(folder);
  OpenSnapshot opened;
  opened.path_ = folder;
  opened.step_ = manifest.step;
  for (const auto& [name, expected] : manifest.files) {
    std::shared_ptr<const base::MappedFile> file = checked_file(folder / name, expected);
    if (const std::string section = section_of_file(name); !section.empty()) {
      opened.sections_.emplace(section, Safetensors(std::move(file)));
      opened.checksums_.emplace(section, expected.checksum);
    } else {
      opened.texts_.emplace(name, text_of(*file, kTextBytesMax));
    }
  }
  return opened;
}

std::optional<std::string> find_latest(const std::string& run_dir) {
  check_run_directory(run_dir);
  const std::vector<StepFolder> folders = step_folders(run_dir);
  std::string newest_trouble;
  for (const StepFolder& folder : folders) {
    try {
      check_lightly(folder.path);
      return folder.path.string();
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::corrupt_file) throw;
      if (newest_trouble.empty()) newest_trouble = error.what();
    }
  }
  if (!folders.empty()) fail_all_damaged(run_dir, folders.size(), newest_trouble);
  return std::nullopt;
}

std::optional<OpenSnapshot> open_latest(const std::string& run_dir, base::Log& log, int64_t step_last) {
  check_run_directory(run_dir);
  std::vector<StepFolder> folders = step_folders(run_dir);
  std::erase_if(folders, [&](const StepFolder& folder) { return folder.step > step_last; });
  std::string newest_trouble;
  for (const StepFolder& folder : folders) {
    try {
      return open(folder.path);
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::corrupt_file) throw;
      log.warn("snapshot of step {} is damaged, passed over: {}", folder.step, error.what());
      if (newest_trouble.empty()) newest_trouble = error.what();
    }
  }
  if (folders.empty()) return std::nullopt;
  fail_all_damaged(run_dir, folders.size(), newest_trouble);
}

std::vector<SnapshotInfo> list(const std::string& run_dir) {
  check_run_directory(run_dir);
  std::vector<SnapshotInfo> found;
  for (const StepFolder& folder : step_folders(run_dir)) {
    SnapshotInfo listed{.step = folder.step, .bytes = 0, .path = folder.path};
    std::error_code ignored;  // a file may disappear meanwhile
    for (fs::recursive_directory_iterator it(folder.path, ignored), end; !ignored && it != end; it.increment(ignored)) {
      if (it->is_regular_file(ignored)) listed.bytes += static_cast<int64_t>(it->file_size(ignored));
    }
    found.push_back(std::move(listed));
  }
  std::reverse(found.begin(), found.end());
  return found;
}

}  // namespace cairn::snapshot
