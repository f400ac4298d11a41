#include "snapshot/copy.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "snapshot/cells.h"

namespace cairn::snapshot {
namespace {

constexpr const char* kCopied = "the manifest of a copied snapshot";

}  // namespace

CopyReader::CopyReader(std::string folder)
    : folder_(std::move(folder)),
      text_(base::read_file(folder_ + "/" + kManifestFile, kManifestBytesMax)),
      manifest_(parse_manifest(text_, folder_ + "/" + kManifestFile)),
      next_(manifest_.files.begin()) {}

void CopyReader::read(std::span<std::byte> into) {
  while (!into.empty()) {
    while (!file_ || offset_ == file_->bytes().size()) {
      CAIRN_CHECK(next_ != manifest_.files.end(), "{}: {} bytes beyond its end were asked for", folder_, into.size());
      file_ = base::MappedFile::open(folder_ + "/" + next_->first);
      if (const auto bytes = static_cast<int64_t>(file_->bytes().size()); bytes != next_->second.bytes)
        base::fail_corrupt(file_->path(), fmt::format("{} bytes long, the manifest says {}", bytes, next_->second.bytes));
      ++next_;
      offset_ = 0;
    }
    const size_t count = std::min(into.size(), file_->bytes().size() - offset_);
    std::memcpy(into.data(), file_->bytes().data() + offset_, count);
    offset_ += count;
    into = into.subspan(count);
  }
}

CopyWriter::CopyWriter(const std::string& run_dir, const std::string& manifest, const base::Disk& disk)
    : disk_(disk),
      text_(manifest),
      manifest_(parse_manifest(manifest, kCopied)),
      next_(manifest_.files.begin()),
      staging_(run_dir, manifest_.step, total_bytes(manifest_), disk) {}

void CopyWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    CAIRN_CHECK(next_ != manifest_.files.end(), "{} bytes more than the manifest says", bytes.size());
    if (!file_) file_.emplace(staging_.path() / next_->first, next_->second.bytes, disk_);
    const size_t count = std::min(bytes.size(), static_cast<size_t>(next_->second.bytes - file_->bytes_written()));
    file_->write(bytes.first(count));
    bytes = bytes.subspan(count);
    if (file_->bytes_written() == next_->second.bytes) end_file();
  }
}

void CopyWriter::end_file() {
  if (!file_) file_.emplace(staging_.path() / next_->first, 0, disk_);  // an empty file
  const std::filesystem::path path = staging_.path() / next_->first;
  const FileRecord& expected = next_->second;
  const auto differs = [&] { base::fail_corrupt(path.string(), "the copy differs from what the manifest says"); };
  if (file_->bytes_written() != expected.bytes || (expected.cells.empty() && file_->checksum() != expected.checksum)) differs();
  file_->commit();
  file_.reset();
  if (!expected.cells.empty() && !damaged_cells(expected.cells, base::MappedFile::open(path)->bytes(), path).empty()) differs();
  ++next_;
}

std::string CopyWriter::commit() {
  while (next_ != manifest_.files.end()) end_file();
  write_manifest(staging_.path(), text_, disk_);
  return staging_.put_in_place();
}

}  // namespace cairn::snapshot
