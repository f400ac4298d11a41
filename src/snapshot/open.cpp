// Opening a snapshot: the manifest first, then every file against it.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "snapshot/cells.h"
#include "snapshot/check_file.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr size_t kTextBytesMax = 64 << 20;
constexpr int64_t kSmallBytes = 16 << 20;

std::string text_of(const base::MappedFile& file, size_t bytes_max) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > bytes_max) base::fail_corrupt(file.path(), fmt::format("{} bytes, at most {} are read", bytes.size(), bytes_max));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string described(SafetensorsDtype dtype, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", word_of(dtype), fmt::join(shape, ", "));
}

// "; missing there: a, b and 3 more", or nothing.
std::string listed(const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return {};
  return fmt::format("; {}: {}", title, some_of(items));
}

}  // namespace

// The tensors of a section, wherever they lie.
struct OpenSnapshot::Source {
  std::string path;
  std::vector<TensorEntry> entries;  // offsets count only where `file` is set
  const Safetensors* file = nullptr;
  const std::vector<PiecedTensor>* pieced = nullptr;
};

OpenSnapshot::Source OpenSnapshot::source_of(const std::string& name) const {
  if (const auto found = pieces_.find(name); found != pieces_.end()) {
    Source source{.path = path_ + "/" + kPieceIndexFile, .entries = {}, .file = nullptr, .pieced = &found->second};
    for (const PiecedTensor& one : found->second) source.entries.push_back({.name = one.name, .dtype = one.dtype, .shape = one.shape});
    return source;
  }
  const Safetensors& file = section(name);
  return {.path = file.path(), .entries = file.entries(), .file = &file, .pieced = nullptr};
}

const Safetensors* OpenSnapshot::tensor_file(const std::string& file) const {
  if (const auto found = rank_files_.find(file); found != rank_files_.end()) return &found->second;
  const auto found = sections_.find(section_of_file(file));
  return found == sections_.end() ? nullptr : &found->second;
}

std::vector<std::string> OpenSnapshot::sections() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : sections_) names.push_back(name);
  for (const auto& [name, tensors] : pieces_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

// The entry of a piece in its file, which must have as many elements.
const TensorEntry& entry_of(const Piece& piece, SafetensorsDtype dtype, const Safetensors& file) {
  const TensorEntry* entry = file.find(piece.name);
  if (!entry || entry->dtype != dtype || entry->shape != std::vector<int64_t>{piece.fragment.elements.length()})
    base::fail_corrupt(file.path(), fmt::format("{} is not the piece that the index says", piece.name));
  return *entry;
}

}  // namespace

void OpenSnapshot::check_now(const std::string& file, int64_t begin, int64_t end) const {
  if (!unchecked_.contains(file)) return;
  check_cells(*base::MappedFile::open(path_ + "/" + file), manifest_.files.at(file),
              [&](const CellUnit& unit) { return unit.begin < end && begin < unit.end; });
}

at::Tensor OpenSnapshot::assemble(const PiecedTensor& tensor) const {
  at::Tensor whole = at::empty(tensor.shape, at::TensorOptions().dtype(scalar_type(tensor.dtype)));
  const int64_t element = bytes_of(tensor.dtype);
  auto* to = static_cast<std::byte*>(whole.mutable_data_ptr());
  const mesh::FragmentBox dense = mesh::dense(tensor.shape);
  for (const Piece& piece : tensor.pieces) {
    const Safetensors* file = tensor_file(piece.file);  // there, since open() has looked
    const TensorEntry& entry = entry_of(piece, tensor.dtype, *file);
    check_now(piece.file, entry.begin, entry.end);
    const at::Tensor elements = file->view(entry);
    const auto* from = static_cast<const std::byte*>(elements.const_data_ptr());
    for (const mesh::FragmentBox& box : mesh::boxes_of(piece.fragment))
      for (const mesh::CopyRun& run : mesh::runs_between(box.box, box, dense))
        std::memcpy(to + run.to * element, from + run.from * element, static_cast<size_t>(run.elements * element));
  }
  return whole;
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
  const Source saved = source_of(section_name);
  std::unordered_map<std::string, const TensorEntry*> unread;
  for (const TensorEntry& entry : saved.entries) unread.emplace(entry.name, &entry);
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
  for (const TensorEntry& entry : saved.entries)
    if (unread.contains(entry.name)) unexpected.push_back(entry.name);
  if (const std::string trouble = listed("missing there", missing) + listed("unknown here", unexpected) + listed("different", unlike);
      !trouble.empty()) {
    base::fail_input("{}: does not fit what it is loaded into{}", saved.path, trouble);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [entry, one] : copies)
    if (one->take && saved.file) check_now(file_of_section(section_name), entry->begin, entry->end);
  for (const auto& [entry, one] : copies)
    if (one->take)
      one->take(saved.file ? saved.file->view(*entry) : assemble((*saved.pieced)[static_cast<size_t>(entry - saved.entries.data())]));
}

std::vector<TensorEntry> OpenSnapshot::entries(const std::string& section_name) const {
  std::vector<TensorEntry> all = source_of(section_name).entries;
  std::sort(all.begin(), all.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  return all;
}

at::Tensor OpenSnapshot::tensor(const std::string& section_name, const std::string& name) const {
  const Source saved = source_of(section_name);
  for (size_t i = 0; i < saved.entries.size(); ++i) {
    if (saved.entries[i].name != name) continue;
    if (!saved.file) return assemble((*saved.pieced)[i]);
    check_now(file_of_section(section_name), saved.entries[i].begin, saved.entries[i].end);
    return saved.file->view(saved.entries[i]);
  }
  base::fail_input("{}: no tensor {}", saved.path, name);
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

// Of a file that several ranks have written: of the checksums of its cells.
uint64_t checksum_of(const FileRecord& record) {
  if (record.cells.empty()) return record.checksum;
  base::Checksum all;
  for (const Cell& cell : record.cells) {
    all.add(std::as_bytes(std::span(&cell.offset, 1)));
    all.add(std::as_bytes(std::span(&cell.checksum, 1)));
  }
  return all.value();
}

[[noreturn]] void fail_all_damaged(const std::string& run_dir, size_t count, const std::string& newest_trouble) {
  throw Error(Error::Kind::corrupt_file,
              fmt::format("{}: none of its {} snapshots is whole; the newest: {}", run_dir, count, newest_trouble));
}

}  // namespace

namespace {

// What is lost with the file of a rank, for a message; the file itself may be missing.
std::string held_by(const fs::path& folder, const std::string& file) {
  try {
    const std::string index = folder / kPieceIndexFile;
    std::vector<std::string> names;
    for (const auto& [section, tensors] : parse_piece_index(text_of(*base::MappedFile::open(index), kTextBytesMax), index))
      for (const PiecedTensor& tensor : tensors)
        if (std::any_of(tensor.pieces.begin(), tensor.pieces.end(), [&](const Piece& piece) { return piece.file == file; }))
          names.push_back(tensor.name);
    return names.empty() ? "" : fmt::format("; it has parts of {}", some_of(names));
  } catch (const Error&) {  // then there is more to tell than this
    return {};
  }
}

}  // namespace

// Every piece is where the index says.
void OpenSnapshot::check_pieces() const {
  for (const auto& [section, tensors] : pieces_)
    for (const PiecedTensor& tensor : tensors)
      for (const Piece& piece : tensor.pieces) {
        const Safetensors* file = tensor_file(piece.file);
        if (!file)
          base::fail_corrupt(path_ + "/" + kPieceIndexFile, fmt::format("{}: a piece in {}, which is not there", tensor.name, piece.file));
        entry_of(piece, tensor.dtype, *file);
      }
}

OpenSnapshot open(const std::string& path, Check check) {
  const fs::path folder = fs::path(path).has_filename() ? fs::path(path) : fs::path(path).parent_path();
  const Manifest manifest = read_manifest(folder);
  OpenSnapshot opened;
  opened.path_ = folder;
  opened.step_ = manifest.step;
  opened.manifest_ = manifest;
  for (const auto& [name, expected] : manifest.files) {
    const bool lightly = check == Check::all_but_tensors && !expected.cells.empty();
    if (lightly) opened.unchecked_.insert(name);
    std::shared_ptr<const base::MappedFile> file;
    try {
      file = lightly ? file_of_length(folder / name, expected.bytes) : checked_file(folder / name, expected);
      if (lightly) check_cells(*file, expected, [](const CellUnit& unit) { return unit.begin == 0; });  // the header
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::corrupt_file || !is_rank_file(name)) throw;
      throw Error(Error::Kind::corrupt_file, error.what() + held_by(folder, name));
    }
    if (name == kPieceIndexFile) {
      opened.pieces_ = parse_piece_index(text_of(*file, kTextBytesMax), file->path());
    } else if (is_rank_file(name)) {
      opened.rank_files_.emplace(name, Safetensors(std::move(file)));
    } else if (const std::string section = section_of_file(name); !section.empty()) {
      opened.sections_.emplace(section, Safetensors(std::move(file)));
      opened.checksums_.emplace(section, checksum_of(expected));
    } else {
      opened.texts_.emplace(name, text_of(*file, kTextBytesMax));
    }
  }
  opened.check_pieces();
  return opened;
}

OpenSnapshot open_parts(const std::string& name, Manifest manifest, PieceIndex pieces, const std::map<std::string, PartFile>& files,
                        std::map<std::string, std::string> texts) {
  OpenSnapshot opened;
  opened.path_ = name;
  opened.step_ = manifest.step;
  opened.manifest_ = std::move(manifest);
  opened.pieces_ = std::move(pieces);
  opened.texts_ = std::move(texts);
  for (const auto& [file, part] : files) {
    opened.rank_files_.emplace(file, Safetensors(part.file));
    opened.readers_.emplace(file, part.readers);
  }
  return opened;
}

std::vector<int> OpenSnapshot::readers(const std::string& file) const {
  const auto found = readers_.find(file);
  return found == readers_.end() ? std::vector<int>{} : found->second;
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

std::optional<OpenSnapshot> open_latest(const std::string& run_dir, base::Log& log, int64_t step_last, Check check) {
  check_run_directory(run_dir);
  std::vector<StepFolder> folders = step_folders(run_dir);
  std::erase_if(folders, [&](const StepFolder& folder) { return folder.step > step_last; });
  std::string newest_trouble;
  for (const StepFolder& folder : folders) {
    try {
      return open(folder.path, check);
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
