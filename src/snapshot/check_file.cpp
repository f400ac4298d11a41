#include "snapshot/check_file.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/json.h"

namespace cairn::snapshot {
namespace {

constexpr size_t kNamesShown = 5;
constexpr int kHeaderDepth = 8;
constexpr int64_t kLengthBytes = 8;  // before the header

std::string of_tensors(const base::MappedFile& file, int64_t begin, int64_t end) {
  const std::vector<std::string> names = tensors_between(file, begin, end);
  return names.empty() ? "" : fmt::format("; of the tensor {}", some_of(names));
}

}  // namespace

std::string some_of(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

std::vector<std::string> tensors_between(const base::MappedFile& file, int64_t begin, int64_t end) {
  if (!file.path().ends_with(".safetensors")) return {};
  const std::span<const std::byte> bytes = file.bytes();
  uint64_t length = 0;
  if (bytes.size() < kLengthBytes) return {};
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > static_cast<uint64_t>(kHeaderBytesMax) || length > bytes.size() - kLengthBytes) return {};
  const base::GuardedJson header = base::parse_json_guarded(
      std::string_view(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, static_cast<size_t>(length)), kHeaderDepth);
  std::vector<std::string> names;
  if (!header.trouble.empty() || !header.value.is_object()) return names;
  for (const auto& [name, facts] : header.value.items()) {
    if (!facts.is_object() || !facts.contains("data_offsets")) continue;
    const base::Json& offsets = facts["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) continue;
    const auto data = static_cast<double>(kLengthBytes) + static_cast<double>(length);  // doubles: nothing overflows
    if (data + offsets[0].get<double>() < static_cast<double>(end) && data + offsets[1].get<double>() > static_cast<double>(begin))
      names.push_back(name);
  }
  return names;
}

std::shared_ptr<const base::MappedFile> file_of_length(const std::string& path, int64_t expected) {
  std::shared_ptr<const base::MappedFile> file = base::MappedFile::open(path);
  const auto bytes = static_cast<int64_t>(file->bytes().size());
  if (bytes != expected)
    base::fail_corrupt(path, fmt::format("{} bytes long, the manifest says {}{}", bytes, expected,
                                         of_tensors(*file, std::min(bytes, expected), std::numeric_limits<int64_t>::max())));
  return file;
}

void check_cells(const base::MappedFile& file, const FileRecord& expected, const std::function<bool(const CellUnit&)>& which) {
  for (const CellUnit& unit : cell_units(expected.cells, expected.bytes, file.path())) {
    if (!which(unit)) continue;
    const auto bytes = file.bytes().subspan(static_cast<size_t>(unit.begin), static_cast<size_t>(unit.end - unit.begin));
    if (const Cell* damaged = damaged_cell(unit, bytes))
      base::fail_corrupt(file.path(), fmt::format("bytes {} to {} have another checksum than the manifest says{}", damaged->offset,
                                                  damaged->end(), of_tensors(file, damaged->offset, damaged->end())));
  }
}

std::shared_ptr<const base::MappedFile> checked_file(const std::string& path, const FileRecord& expected) {
  std::shared_ptr<const base::MappedFile> file = file_of_length(path, expected.bytes);
  if (!expected.cells.empty()) {
    check_cells(*file, expected, [](const CellUnit&) { return true; });
    return file;
  }
  const uint64_t found = base::checksum(file->bytes());
  if (found != expected.checksum)
    base::fail_corrupt(path, fmt::format("checksum {:016x}, the manifest says {:016x}", found, expected.checksum));
  return file;
}

}  // namespace cairn::snapshot
