#include "snapshot/rank_part.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/files/disk.h"
#include "base/json.h"
#include "base/text.h"
#include "snapshot/safetensors.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kBlockBytes = 16 << 20;
constexpr int64_t kDirectLeast = 256 << 10;  // a smaller write is faster through the page cache

// Consecutive ranges of [0, elements) of at most kBlockBytes each.
std::vector<mesh::Interval> block_ranges(int64_t elements, int64_t element_bytes) {
  std::vector<mesh::Interval> ranges;
  const int64_t most = std::max<int64_t>(1, kBlockBytes / element_bytes);
  for (int64_t at = 0; at < elements; at += most) ranges.push_back({at, std::min(elements, at + most)});
  return ranges;
}

mesh::Fragment part_of(const mesh::Fragment& fragment, mesh::Interval range) {
  return {fragment.local_shard, {fragment.elements.begin + range.begin, fragment.elements.begin + range.end}};
}

}  // namespace

struct PartWriter::File {
  std::string name;
  fs::path path;
  int descriptor = -1, direct = -1;  // of the same file; direct: for whole pages, or -1
  bool shared = false;
  int64_t bytes = 0;   // its length in all
  std::string header;  // that this rank writes; empty: another one does
  std::vector<Cell> cells;
};

PartWriter::PartWriter(fs::path folder, const RankPart& part, const base::Disk& disk, PartWriterOptions options)
    : folder_(std::move(folder)), disk_(disk), options_(options) {
  vote_.rank = part.rank;
  for (const auto& [section, shared] : part.shared) lay_out_shared(section, shared, part.writes_headers);
  if (!part.own.empty()) lay_out_own(part);
  if (!options_.open_later) open();
}

PartWriter::~PartWriter() { close_all(); }

void PartWriter::close_all() {
  for (File& file : files_)
    for (int* descriptor : {&file.descriptor, &file.direct})
      if (*descriptor >= 0) disk_.close(std::exchange(*descriptor, -1));
}

void PartWriter::open() {
  try {
    for (File& file : files_) open_file(file);
  } catch (...) {
    close_all();
    throw;
  }
}

void PartWriter::open_file(File& file) {
  file.descriptor = disk_.open_shared(file.path);
  if (file.descriptor < 0) fail(file, "open");
  if (options_.direct) file.direct = disk_.open_direct(file.path);  // -1: this file system has no direct I/O
  if (file.header.empty()) return;
  if (file.shared && disk_.resize(file.descriptor, file.bytes) != 0) fail(file, "make room");
  write_at(file, base::as_bytes(file.header), 0);
  add_cell(file, {0, 1, static_cast<int64_t>(file.header.size()), 0, base::checksum(file.header)});
}

void PartWriter::fail(const File& file, const char* doing) const {
  const int error = errno;
  const int64_t free = disk_.free_bytes(folder_);
  throw Error(Error::Kind::disk, fmt::format("{}: cannot {}: {}{}", file.path.string(), doing, std::strerror(error),
                                             free < 0 ? "" : fmt::format(" ({} are free)", base::human_bytes(free))));
}

void PartWriter::write_at(File& file, std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const int64_t written = write_some(file, bytes, offset);
    if (written <= 0) fail(file, "write");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

// With direct I/O whole pages go past the page cache, and what is left of a page at either end through it. No page goes both ways: the
// bytes of a block that begin or end inside a page are the only ones of theirs that this call writes, and other blocks' share of it is
// partial too.
int64_t PartWriter::write_some(File& file, std::span<const std::byte> bytes, int64_t offset) {
  if (file.direct < 0) return disk_.write_at(file.descriptor, bytes, offset);
  const int64_t inside = offset % base::kDirectBytes, size = std::ssize(bytes), pages = size / base::kDirectBytes * base::kDirectBytes;
  if (inside != 0)
    return disk_.write_at(file.descriptor, bytes.first(static_cast<size_t>(std::min(size, base::kDirectBytes - inside))), offset);
  if (pages < kDirectLeast || reinterpret_cast<uintptr_t>(bytes.data()) % base::kDirectBytes != 0)
    return disk_.write_at(file.descriptor, bytes, offset);
  const int64_t written = disk_.write_at(file.direct, bytes.first(static_cast<size_t>(pages)), offset);
  if (written > 0 || errno != EINVAL) return written;
  disk_.close(std::exchange(file.direct, -1));  // not for this file, or not for these lengths
  return disk_.write_at(file.descriptor, bytes, offset);
}

void PartWriter::add_cell(File& file, Cell cell) { file.cells.push_back(cell); }

void PartWriter::lay_out_shared(const std::string& section, const SharedSection& shared, bool writes_header) {
  std::vector<TensorEntry> tensors = shared.tensors;
  const std::string header = format_safetensors_header(tensors, {{"format", "pt"}});
  File& file = files_.emplace_back();
  file.name = file_of_section(section);
  file.path = folder_ / file.name;
  file.shared = true;
  file.bytes = tensors.empty() ? static_cast<int64_t>(header.size()) : tensors.back().end;
  if (writes_header) file.header = header;
  for (const SharedSection::Part& part : shared.parts) {
    const TensorEntry& entry = tensors.at(part.tensor);
    const int64_t element = bytes_of(entry.dtype);
    CAIRN_CHECK(part.data.numel() == part.fragment.elements.length(), "{}: {} elements for a part of {}", entry.name, part.data.numel(),
                part.fragment.elements.length());
    for (const mesh::Interval& range : block_ranges(part.data.numel(), element))
      blocks_.push_back({files_.size() - 1, part.data.view({-1}).narrow(0, range.begin, range.length()),
                         cells_of(mesh::boxes_of(part_of(part.fragment, range)), entry.shape, element, entry.begin)});
  }
}

// One tensor after the other: a cell is a block.
void PartWriter::lay_out_own(const RankPart& part) {
  std::vector<TensorEntry> tensors;
  std::map<std::string, int> used;  // several pieces of one tensor
  for (const OwnPiece& piece : part.own) {
    std::string name = piece.section + "/" + piece.name;
    if (const int again = used[name]++; again > 0) name += fmt::format("/{}", again);
    tensors.push_back({.name = name, .dtype = dtype_of(piece.data.scalar_type()), .shape = {piece.data.numel()}});
  }
  const std::string header = format_safetensors_header(tensors, {{"format", "pt"}});
  File& file = files_.emplace_back();
  file.name = rank_file(part.rank);
  file.path = folder_ / file.name;
  file.bytes = tensors.back().end;
  file.header = header;
  std::map<std::pair<std::string, std::string>, size_t> places;  // of the tensors in the index
  for (size_t i = 0; i < part.own.size(); ++i) {
    const OwnPiece& piece = part.own[i];
    const int64_t element = bytes_of(tensors[i].dtype);
    std::vector<PiecedTensor>& all = vote_.pieces[piece.section];
    const auto [place, added] = places.emplace(std::pair(piece.section, piece.name), all.size());
    if (added) all.push_back({piece.name, tensors[i].dtype, piece.shape, {}});
    all[place->second].pieces.push_back({file.name, tensors[i].name, piece.fragment});
    for (const mesh::Interval& range : block_ranges(piece.data.numel(), element)) {
      const mesh::FragmentBox flat = mesh::dense({range.length()});
      blocks_.push_back({files_.size() - 1,
                         piece.data.view({-1}).narrow(0, range.begin, range.length()),
                         {{{tensors[i].begin + range.begin * element, 1, range.length() * element, 0, 0}, flat.box, flat}}});
    }
  }
}

void PartWriter::write(const WriteBlock& block, std::span<const std::byte> bytes) {
  File& file = files_[block.file];
  const auto element = static_cast<int64_t>(block.data.element_size());
  for (const CellSource& source : block.cells) {
    Cell cell = source.cell;
    // The memory has the box with strides of its own; the file has it in rows.
    std::vector<int64_t> extents;
    for (const mesh::Interval& dim : source.box.dims) extents.push_back(dim.length());
    mesh::FragmentBox packed = mesh::dense(extents);
    packed.box = source.box;
    base::Checksum sum;
    int64_t row = 0, column = 0;  // in the cell
    for (const mesh::CopyRun& run : mesh::runs_between(source.box, source.fragment, packed)) {
      std::span<const std::byte> from = bytes.subspan(static_cast<size_t>(run.from * element), static_cast<size_t>(run.elements * element));
      sum.add(from);
      while (!from.empty()) {  // a run of the memory may be several rows of the file, or part of one
        const auto now = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(from.size()), cell.row_bytes - column));
        write_at(file, from.first(now), cell.offset + row * cell.stride + column);
        from = from.subspan(now);
        column += static_cast<int64_t>(now);
        if (column == cell.row_bytes) {
          column = 0;
          ++row;
        }
      }
    }
    cell.checksum = sum.value();
    add_cell(file, cell);
  }
}

Vote PartWriter::finish() {
  for (File& file : files_) {
    if (disk_.sync(file.descriptor) != 0) fail(file, "sync");
    if (file.direct >= 0) disk_.close(std::exchange(file.direct, -1));
    if (disk_.close(std::exchange(file.descriptor, -1)) != 0) fail(file, "close");
    if (file.shared) {
      vote_.shared[file.name] = file.cells;
      vote_.shared_bytes[file.name] = file.bytes;
    } else {
      vote_.files[file.name] = {.bytes = file.bytes, .checksum = 0, .tensors = {}, .cells = file.cells};
    }
  }
  return std::move(vote_);
}

std::string format_vote(const Vote& vote) {
  base::OrderedJson json = {{"rank", vote.rank}, {"files", base::OrderedJson::object()}, {"shared", base::OrderedJson::object()}};
  for (const auto& [name, record] : vote.files) json["files"][name] = {{"bytes", record.bytes}, {"cells", cells_to_json(record.cells)}};
  for (const auto& [name, cells] : vote.shared)
    json["shared"][name] = {{"bytes", vote.shared_bytes.at(name)}, {"cells", cells_to_json(cells)}};
  json["pieces"] = piece_index_to_json(vote.pieces);
  return base::compact(json) + "\n";
}

Vote parse_vote(const std::string& text, const std::string& path) {
  const base::GuardedJson parsed = base::parse_json_guarded(text, 16);
  if (!parsed.trouble.empty()) base::fail_corrupt(path, parsed.trouble);
  try {
    const base::Json& json = parsed.value;
    Vote vote;
    vote.rank = json.at("rank").get<int>();
    const auto named = [&](const std::string& name) -> const std::string& {
      if (!is_file_name(name)) base::fail_corrupt(path, "a file name that no snapshot has");
      return name;
    };
    for (const auto& [name, facts] : json.at("files").items())
      vote.files[named(name)] = {.bytes = facts.at("bytes").get<int64_t>(), .cells = cells_from_json(facts.at("cells"), name, path)};
    for (const auto& [name, facts] : json.at("shared").items()) {
      vote.shared_bytes[named(name)] = facts.at("bytes").get<int64_t>();
      vote.shared[name] = cells_from_json(facts.at("cells"), name, path);
    }
    vote.pieces = parse_some_pieces(json.at("pieces"), path);
    return vote;
  } catch (const base::Json::exception& error) {
    base::fail_corrupt(path, error.what());
  }
}

CommittedParts merge_votes(const std::vector<Vote>& votes) {
  CommittedParts all;
  for (const Vote& vote : votes) {
    for (const auto& [name, record] : vote.files) all.files[name] = record;
    for (const auto& [name, cells] : vote.shared) {
      FileRecord& record = all.files[name];
      record.bytes = vote.shared_bytes.at(name);
      record.cells.insert(record.cells.end(), cells.begin(), cells.end());
    }
    add_pieces(all.pieces, vote.pieces);
  }
  for (auto& [name, record] : all.files) {
    std::vector<Cell> sorted;
    for (const CellUnit& unit : cell_units(record.cells, record.bytes, name))
      sorted.insert(sorted.end(), unit.cells.begin(), unit.cells.end());
    record.cells = std::move(sorted);
  }
  return all;
}

}  // namespace cairn::snapshot
