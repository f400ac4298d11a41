#include "snapshot/manifest.h"

#include <charconv>

#include "base/check.h"
#include "base/json.h"

namespace cairn::snapshot {
namespace {

constexpr const char* kFormat = "cairn-snapshot";
constexpr int64_t kFormatVersion = 1, kCellsFormatVersion = 2;  // with files that have cells
constexpr size_t kCellNumbers = 5;
constexpr int kDepthMax = 8;
constexpr std::string_view kTraining = "training/";
constexpr std::string_view kExtension = ".safetensors";

// The value under `key` if it is there and of that type.
template <typename T>
T value_of(const base::Json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  const bool right = found != object.end() && (std::is_same_v<T, std::string> ? found->is_string() : found->is_number_unsigned());
  if (!right) base::fail_corrupt(path, fmt::format("no {} that can be read", key));
  return found->template get<T>();
}

uint64_t checksum_of(const std::string& digits, const std::string& of, const std::string& path) {
  uint64_t sum = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), sum, 16);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.size() != 16)
    base::fail_corrupt(path, fmt::format("the xxh3 of {} is not 16 hex digits", of));
  return sum;
}

FileRecord file_facts(const std::string& name, const base::Json& facts, const std::string& path) {
  if (!is_file_name(name)) base::fail_corrupt(path, "a file name that no snapshot has");
  if (!facts.is_object()) base::fail_corrupt(path, fmt::format("nothing is said about {}", name));
  if (const auto cells = facts.find("cells"); cells != facts.end()) {
    FileRecord written{.bytes = value_of<int64_t>(facts, "bytes", path), .cells = cells_from_json(*cells, name, path)};
    cell_units(written.cells, written.bytes, path);  // refuses those that do not cover the file
    return written;
  }
  const auto digits = value_of<std::string>(facts, "xxh3", path);
  FileRecord written{.bytes = value_of<int64_t>(facts, "bytes", path), .checksum = checksum_of(digits, name, path)};
  const auto tensors = facts.find("tensors");
  if (tensors == facts.end()) return written;  // of a Cairn that did not write them, or of a text
  if (!tensors->is_object()) base::fail_corrupt(path, fmt::format("the tensors of {} cannot be read", name));
  for (const auto& [tensor, sum] : tensors->items())
    written.tensors[tensor] = checksum_of(sum.is_string() ? sum.get<std::string>() : "", fmt::format("a tensor of {}", name), path);
  return written;
}

bool is_plain_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '.' && std::all_of(name.begin(), name.end(), plain);
}

}  // namespace

int64_t total_bytes(const Manifest& manifest) {
  int64_t total = 0;
  for (const auto& [name, file] : manifest.files) total += file.bytes;
  return total;
}

base::OrderedJson cells_to_json(const std::vector<Cell>& cells) {
  base::OrderedJson list = base::OrderedJson::array();
  for (const Cell& cell : cells)
    list.push_back({cell.offset, cell.rows, cell.row_bytes, cell.stride, fmt::format("{:016x}", cell.checksum)});
  return list;
}

std::vector<Cell> cells_from_json(const base::Json& list, const std::string& of, const std::string& path) {
  const auto fail = [&] { base::fail_corrupt(path, fmt::format("the cells of {} cannot be read", of)); };
  if (!list.is_array()) fail();
  std::vector<Cell> cells;
  for (const base::Json& one : list) {
    if (!one.is_array() || one.size() != kCellNumbers || !one.back().is_string()) fail();
    for (size_t i = 0; i + 1 < kCellNumbers; ++i)
      if (!one[i].is_number_unsigned() || one[i].get<uint64_t>() > uint64_t{1} << 56) fail();
    cells.push_back({one[0].get<int64_t>(), one[1].get<int64_t>(), one[2].get<int64_t>(), one[3].get<int64_t>(),
                     checksum_of(one[4].get<std::string>(), fmt::format("a cell of {}", of), path)});
  }
  return cells;
}

std::string format_manifest(const Manifest& manifest) {
  const bool cells = std::any_of(manifest.files.begin(), manifest.files.end(), [](const auto& file) { return !file.second.cells.empty(); });
  base::OrderedJson json{{"format", kFormat},
                         {"format_version", cells ? kCellsFormatVersion : kFormatVersion},
                         {"cairn_version", manifest.version},
                         {"step", manifest.step}};
  for (const auto& [name, file] : manifest.files) {
    base::OrderedJson& facts = json["files"][name];
    if (!file.cells.empty()) {
      facts = {{"bytes", file.bytes}, {"cells", cells_to_json(file.cells)}};
      continue;
    }
    facts = {{"bytes", file.bytes}, {"xxh3", fmt::format("{:016x}", file.checksum)}};
    for (const auto& [tensor, checksum] : file.tensors) facts["tensors"][tensor] = fmt::format("{:016x}", checksum);
  }
  return (cells ? base::compact(json) : base::pretty(json)) + "\n";  // cells are many numbers
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const base::GuardedJson parsed = base::parse_json_guarded(text, kDepthMax);
  if (!parsed.trouble.empty()) base::fail_corrupt(path, parsed.trouble);
  const base::Json& json = parsed.value;
  if (!json.is_object()) base::fail_corrupt(path, "not a JSON object");
  if (const auto format = value_of<std::string>(json, "format", path); format != kFormat)
    base::fail_corrupt(path, "not the manifest of a Cairn snapshot");
  if (const auto version = value_of<int64_t>(json, "format_version", path); version < kFormatVersion || version > kCellsFormatVersion)
    base::fail_corrupt(path, fmt::format("format version {}, this Cairn reads {} and {}", version, kFormatVersion, kCellsFormatVersion));
  Manifest manifest{
      .step = value_of<int64_t>(json, "step", path), .version = value_of<std::string>(json, "cairn_version", path), .files = {}};
  const auto files = json.find("files");
  if (files == json.end() || !files->is_object()) base::fail_corrupt(path, "no files that can be read");
  for (const auto& [name, facts] : files->items()) manifest.files.emplace(name, file_facts(name, facts, path));
  return manifest;
}

bool is_file_name(const std::string& name) {
  const std::string_view view = name;
  return view != kManifestFile && is_plain_name(view.starts_with(kTraining) ? view.substr(kTraining.size()) : view);
}

std::string rank_file(int rank) { return fmt::format("{}rank-{:05}{}", kTraining, rank, kExtension); }

bool is_rank_file(const std::string& file) { return file.starts_with(fmt::format("{}rank-", kTraining)) && file.ends_with(kExtension); }

bool is_section_name(const std::string& name) { return is_plain_name(name); }

std::string file_of_section(const std::string& section) {
  if (!is_plain_name(section)) base::fail_input("snapshot section \"{}\": a name is letters, digits, '.', '_' and '-'", section);
  return fmt::format("{}{}{}", section == "model" ? "" : kTraining, section, kExtension);
}

std::string section_of_file(const std::string& file) {
  std::string_view name = file;
  if (!name.ends_with(kExtension)) return {};
  name.remove_suffix(kExtension.size());
  if (name == "model") return std::string(name);
  return name.starts_with(kTraining) ? std::string(name.substr(kTraining.size())) : std::string();
}

}  // namespace cairn::snapshot
