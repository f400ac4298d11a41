// How ranks load together. All ranks compute the same plan from the manifest, the piece index and the state map; only values are sent.
//
//   unit      a range of a file that holds whole cells, at most about 16 MiB: read by one rank, checked, and cut up
//   region    a tensor, or a piece of one, in a file: the elements of a fragment (mesh/fragment.h), in order
//   owner     of a unit: the rank that keeps most of it, unless that one has much to read already
//   round k   every rank reads its unit number k and packs, for each other rank, the parts of it that this rank keeps, box by box; one
//             all-to-all later each rank unpacks what it got in the same order. Where all keep what they read, nothing is sent
#include "train/state/part_load.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/files.h"
#include "base/files/positioned_file.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "mesh/fragment.h"
#include "parallel/state/state_map.h"
#include "snapshot/cells.h"
#include "snapshot/check_file.h"
#include "snapshot/snapshot.h"
#include "train/build.h"

namespace cairn::train {
namespace {

constexpr int64_t kUnitBytesMost = 16 << 20, kUnitBytesLeast = 256 << 10;
constexpr int64_t kUnitsOfARank = 8;  // at least so many, so that ranks get about the same number of bytes

struct Region {
  int64_t begin = 0, end = 0;  // in the file
  size_t tensor = 0;           // of SharedLoad::tensors_
  mesh::Fragment fragment;
};

struct PlannedTensor {
  const StateTensor* tensor = nullptr;
  int64_t element_bytes = 4;
  std::vector<std::vector<mesh::FragmentBox>> kept;  // by rank of the group: where its elements go
  at::Tensor into;                                   // of this rank: flat, on the host; undefined: it keeps none
};

struct Unit {
  std::string file;
  snapshot::CellUnit cells;
  std::vector<const Region*> regions;
  bool is_sent = false;           // another rank than its owner keeps some of it
  std::vector<int> readers = {};  // the ranks that have it in memory; empty: it is a file that all can read
  int64_t bytes() const { return cells.end - cells.begin; }
};

// A part of a unit that one rank keeps: where it is in the unit's bytes, and where it goes.
struct Part {
  size_t tensor = 0;
  mesh::Box box;
  mesh::FragmentBox from, to;
  int64_t from_byte = 0;  // where the region's part begins in the unit
};

mesh::FragmentBox packed(const mesh::Box& box) {
  std::vector<int64_t> extents;
  for (const mesh::Interval& dim : box.dims) extents.push_back(dim.length());
  mesh::FragmentBox dense = mesh::dense(extents);
  dense.box = box;
  return dense;
}

class SharedLoad {
 public:
  SharedLoad(const Job& job, const snapshot::OpenSnapshot& from, const std::vector<SectionToLoad>& sections)
      : job_(job), from_(from), group_(*job.engine.step_group), reads_(static_cast<size_t>(group_.size())) {
    uint8_t mine = base::path_exists(from.path()) ? 1 : 0;  // else another rank does (folder_view.h)
    group_.all_gather({reads_.data(), group_.size(), comm::Dtype::u8}, {&mine, 1, comm::Dtype::u8}, {comm::Purpose::control, "snapshots"})
        .wait_host();
    for (const auto& [section, pieced] : from.pieces())
      for (const snapshot::PiecedTensor& one : pieced) named_[{section, one.name}] = &one;
    for (const SectionToLoad& section : sections) {
      check(section);
      for (const StateTensor& one : section.into) add(section.section, one);
    }
    make_units();
  }

  LoadedTogether run() {
    size_t rounds = 0;
    for (const auto& units : units_of_) rounds = std::max(rounds, units.size());
    announce(0);
    for (size_t round = 0; round < rounds; ++round) {
      announce(round + 1);
      exchange(round);
    }
    agree();
    if (!result_.damage.empty()) return result_;
    for (const PlannedTensor& one : tensors_) {
      if (!one.into.defined() || one.into.is_alias_of(one.tensor->mine)) continue;
      const auto there = mesh::hold(job_.engine.store->swapper(), one.tensor->mine, mesh::TensorSwapper::Access::update);
      one.tensor->mine.copy_(one.into.view(one.tensor->mine.sizes()));
    }
    return result_;
  }

 private:
  // Where the tensor itself is written.
  mesh::TensorSwapper::Hold hold(const PlannedTensor& planned) const {
    return mesh::hold(job_.engine.store->swapper(), planned.into, mesh::TensorSwapper::Access::update);
  }

  // Names, shapes and dtypes.
  void check(const SectionToLoad& section) const {
    std::vector<snapshot::TensorRequest> wanted;
    for (const StateTensor& one : section.into) wanted.push_back({one.name, one.shape, one.dtype, {}});
    from_.load(section.section, wanted);
  }

  void add(const std::string& section, const StateTensor& one) {
    PlannedTensor planned;
    planned.tensor = &one;
    planned.element_bytes = static_cast<int64_t>(c10::elementSize(one.dtype));
    planned.kept.resize(static_cast<size_t>(group_.size()));
    for (const parallel::StateMap::Holding& holding : job_.state_map->holdings(one.parameter))
      planned.kept[static_cast<size_t>(holding.rank)] = mesh::boxes_of(one.by_element ? holding.fragment : mesh::whole_tensor(one.shape));
    int64_t keeps = 0;
    for (const mesh::FragmentBox& box : planned.kept[static_cast<size_t>(group_.rank())]) keeps += box.box.elements();
    CAIRN_CHECK(keeps == (one.mine.defined() ? one.mine.numel() : 0), "{}: this rank keeps {} of its elements, not {}", one.name, keeps,
                one.mine.defined() ? one.mine.numel() : 0);
    result_.bytes += c10::multiply_integers(one.shape) * planned.element_bytes;
    if (one.mine.defined()) {
      CAIRN_CHECK(one.mine.scalar_type() == one.dtype, "{} is {}, not {}", one.name, c10::toString(one.mine.scalar_type()),
                  c10::toString(one.dtype));
      const bool direct = one.mine.is_cpu() && one.mine.is_contiguous();
      planned.into = direct ? one.mine.detach().view({-1}) : at::empty({one.mine.numel()}, one.mine.scalar_type());
    }
    const size_t tensor = tensors_.size();
    tensors_.push_back(std::move(planned));
    if (const auto pieced = from_.pieces().find(section); pieced != from_.pieces().end()) {
      const snapshot::PiecedTensor& found = *named_.at({section, one.name});
      for (const snapshot::Piece& piece : found.pieces) add_region(piece.file, piece.name, tensor, piece.fragment);
    } else {
      add_region(snapshot::file_of_section(section), one.name, tensor, mesh::whole_tensor(one.shape));
    }
  }

  void add_region(const std::string& file, const std::string& name, size_t tensor, const mesh::Fragment& fragment) {
    const snapshot::Safetensors* opened = from_.tensor_file(file);
    const snapshot::TensorEntry* entry = opened ? opened->find(name) : nullptr;
    if (!entry || entry->end - entry->begin != fragment.elements.length() * tensors_[tensor].element_bytes)
      base::fail_corrupt(from_.path() + "/" + file, fmt::format("{} is not the piece that the index says", name));
    regions_[file].push_back({entry->begin, entry->end, tensor, fragment});
  }

  // Units in the order of the files. Neighbours are joined up to `most` bytes.
  std::vector<Unit> units_in_order(int64_t most) {
    std::vector<Unit> all;
    for (auto& [file, regions] : regions_) {
      const snapshot::FileRecord& record = from_.manifest().files.at(file);
      const size_t first_of_file = all.size();
      for (snapshot::CellUnit& cells : snapshot::cell_units(record.cells, record.bytes, file)) {
        Unit unit{.file = file, .cells = std::move(cells), .regions = {}, .readers = from_.readers(file)};
        auto first = std::upper_bound(regions.begin(), regions.end(), unit.cells.begin,
                                      [](int64_t at, const Region& region) { return at < region.end; });
        for (; first != regions.end() && first->begin < unit.cells.end; ++first) {
          if (first->end == first->begin) continue;
          check_border(unit.cells.begin, *first, file);
          unit.regions.push_back(&*first);
        }
        if (unit.regions.empty()) continue;
        Unit* before = all.size() > first_of_file ? &all.back() : nullptr;
        if (before && before->cells.end == unit.cells.begin && before->bytes() + unit.bytes() <= most)
          join(*before, std::move(unit));
        else
          all.push_back(std::move(unit));
      }
    }
    return all;
  }

  // A unit begins between elements.
  void check_border(int64_t at, const Region& region, const std::string& file) const {
    if (at > region.begin && (at - region.begin) % tensors_[region.tensor].element_bytes != 0)
      base::fail_corrupt(from_.path() + "/" + file, fmt::format("a cell begins inside an element, at {}", at));
  }

  static void join(Unit& unit, Unit&& next) {
    unit.cells.end = next.cells.end;
    unit.cells.cells.insert(unit.cells.cells.end(), next.cells.cells.begin(), next.cells.cells.end());
    for (const Region* region : next.regions)
      if (unit.regions.back() != region) unit.regions.push_back(region);
  }

  void make_units() {
    int64_t total = 0;
    for (auto& [file, regions] : regions_) {
      std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
      for (const Region& region : regions) total += region.end - region.begin;
    }
    const auto ranks = static_cast<size_t>(group_.size());
    const int64_t most = std::clamp(total / (group_.size() * kUnitsOfARank), kUnitBytesLeast, kUnitBytesMost);
    units_of_.resize(ranks);
    std::vector<int64_t> load(ranks, 0), kept(ranks);
    for (Unit& unit : units_in_order(most)) {
      int64_t all = 0, largest = 0;
      for (size_t rank = 0; rank < ranks; ++rank) {
        kept[rank] = bytes_of(parts_for(unit, rank));
        all += kept[rank];
        largest = std::max(largest, kept[rank]);
      }
      size_t owner = ranks, idle = ranks;
      for (size_t rank = 0; rank < ranks; ++rank) {
        if (!can_read(unit, rank)) continue;
        if (kept[rank] == largest && (owner == ranks || load[rank] < load[owner])) owner = rank;
        if (idle == ranks || load[rank] < load[idle]) idle = rank;
      }
      CAIRN_CHECK(idle < ranks, "{}: no rank can read it", unit.file);
      if (owner == ranks || load[owner] * group_.size() > total) owner = idle;  // it reads its share already
      load[owner] += unit.bytes();
      unit.is_sent = all > kept[owner];
      units_of_[owner].push_back(std::move(unit));
    }
  }

  bool can_read(const Unit& unit, size_t rank) const {
    if (unit.readers.empty()) return reads_[rank] != 0;
    return std::find(unit.readers.begin(), unit.readers.end(), static_cast<int>(rank)) != unit.readers.end();
  }

  // What `rank` keeps of a unit, in the order in which it is sent.
  std::vector<Part> parts_for(const Unit& unit, size_t rank) const {
    std::vector<Part> parts;
    for (const Region* region : unit.regions) {
      const PlannedTensor& planned = tensors_[region->tensor];
      const int64_t element = planned.element_bytes;
      const int64_t begin = std::max(unit.cells.begin, region->begin), end = std::min(unit.cells.end, region->end);
      const mesh::Interval range{region->fragment.elements.begin + (begin - region->begin) / element,
                                 region->fragment.elements.begin + (end - region->begin) / element};
      for (const mesh::FragmentBox& from : mesh::boxes_of({region->fragment.local_shard, range}))
        for (const mesh::FragmentBox& to : planned.kept[rank])
          if (const auto common = mesh::intersect(from.box, to.box))
            parts.push_back({region->tensor, *common, from, to, begin - unit.cells.begin});
    }
    return parts;
  }

  int64_t bytes_of(const std::vector<Part>& parts) const {
    int64_t bytes = 0;
    for (const Part& part : parts) bytes += part.box.elements() * tensors_[part.tensor].element_bytes;
    return bytes;
  }

  base::PositionedFile& file_of(const Unit& unit) {
    const auto found = files_.find(unit.file);
    return found != files_.end() ? found->second
                                 : files_.emplace(unit.file, base::PositionedFile(from_.path() + "/" + unit.file)).first->second;
  }

  // The disk reads on while this rank packs and sends.
  void announce(size_t round) {
    const std::vector<Unit>& mine = units_of_[static_cast<size_t>(group_.rank())];
    if (round >= mine.size() || !mine[round].readers.empty()) return;
    try {
      file_of(mine[round]).announce(mine[round].cells.begin, mine[round].bytes());
    } catch (const Error&) {  // read() says so
    }
  }

  // Reads a unit and checks it. Damage is kept for agree(): the others are in the same round.
  void read(const Unit& unit) {
    buffer_.resize(static_cast<size_t>(unit.bytes()));
    try {
      if (unit.readers.empty()) {
        base::PositionedFile& file = file_of(unit);
        const int64_t before = file.bytes_read();
        file.read(unit.cells.begin, buffer_);
        result_.read += file.bytes_read() - before;
      } else {
        std::memcpy(buffer_.data(), from_.tensor_file(unit.file)->bytes().data() + unit.cells.begin, buffer_.size());
      }
      if (const snapshot::Cell* damaged = snapshot::damaged_cell(unit.cells, buffer_))
        base::fail_corrupt(from_.path() + "/" + unit.file, fmt::format("bytes {} to {} have another checksum than the manifest says{}",
                                                                       damaged->offset, damaged->end(), tensors_of(unit, *damaged)));
    } catch (const Error& error) {
      if (result_.damage.empty()) result_.damage = error.what();
    }
  }

  std::string tensors_of(const Unit& unit, const snapshot::Cell& cell) const {
    std::vector<std::string> names;
    for (const Region* region : unit.regions)
      if (region->begin < cell.end() && cell.offset < region->end) names.push_back(tensors_[region->tensor].tensor->name);
    return names.empty() ? "" : fmt::format("; of the tensor {}", snapshot::some_of(names));
  }

  // Copies the parts of a unit that this rank keeps, from the bytes that it has read.
  void keep(const Unit& unit) {
    for (const Part& part : parts_for(unit, static_cast<size_t>(group_.rank()))) {
      const PlannedTensor& planned = tensors_[part.tensor];
      const auto there = hold(planned);
      copy_runs(mesh::runs_between(part.box, part.from, part.to), buffer_.data() + part.from_byte,
                static_cast<std::byte*>(planned.into.data_ptr()), planned.element_bytes);
    }
  }

  static void copy_runs(const std::vector<mesh::CopyRun>& runs, const std::byte* from, std::byte* to, int64_t element) {
    for (const mesh::CopyRun& run : runs)
      std::memcpy(to + run.to * element, from + run.from * element, static_cast<size_t>(run.elements * element));
  }

  bool any_is_sent(size_t round) const {
    return std::any_of(units_of_.begin(), units_of_.end(), [&](const auto& units) { return round < units.size() && units[round].is_sent; });
  }

  void exchange(size_t round) {
    const auto ranks = static_cast<size_t>(group_.size()), me = static_cast<size_t>(group_.rank());
    std::vector<int64_t> out_counts(ranks, 0), in_counts(ranks, 0);
    out_.clear();
    if (round < units_of_[me].size()) {
      const Unit& unit = units_of_[me][round];
      read(unit);
      keep(unit);
      for (size_t rank = 0; unit.is_sent && rank < ranks; ++rank)
        if (rank != me) in_counts[rank] = pack(parts_for(unit, rank));
    }
    if (!any_is_sent(round)) return;
    std::vector<std::vector<Part>> arriving(ranks);
    int64_t all = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (rank == me || round >= units_of_[rank].size() || !units_of_[rank][round].is_sent) continue;
      arriving[rank] = parts_for(units_of_[rank][round], me);
      out_counts[rank] = bytes_of(arriving[rank]);
      all += out_counts[rank];
    }
    in_.resize(static_cast<size_t>(all));
    group_
        .all_to_all({in_.data(), all, comm::Dtype::u8}, {out_.data(), static_cast<int64_t>(out_.size()), comm::Dtype::u8},
                    {comm::Purpose::state, "state from a snapshot"}, out_counts, in_counts)
        .wait_host();
    unpack(arriving);
  }

  // Appends the parts to what is sent. Returns how many bytes they have.
  int64_t pack(const std::vector<Part>& parts) {
    const size_t start = out_.size();
    out_.resize(start + static_cast<size_t>(bytes_of(parts)));
    std::byte* next = out_.data() + start;
    for (const Part& part : parts) {
      const int64_t element = tensors_[part.tensor].element_bytes;
      copy_runs(mesh::runs_between(part.box, part.from, packed(part.box)), buffer_.data() + part.from_byte, next, element);
      next += part.box.elements() * element;
    }
    return static_cast<int64_t>(out_.size() - start);
  }

  void unpack(const std::vector<std::vector<Part>>& arriving) {
    const std::byte* next = in_.data();
    for (const std::vector<Part>& parts : arriving)
      for (const Part& part : parts) {
        const PlannedTensor& planned = tensors_[part.tensor];
        const auto there = hold(planned);
        copy_runs(mesh::runs_between(part.box, packed(part.box), part.to), next, static_cast<std::byte*>(planned.into.data_ptr()),
                  planned.element_bytes);
        next += part.box.elements() * planned.element_bytes;
      }
  }

  // All ranks know what one of them has found, and how much they have read together.
  void agree() {
    const auto ranks = static_cast<size_t>(group_.size());
    std::vector<int64_t> facts(2 * ranks);
    std::array<int64_t, 2> mine{static_cast<int64_t>(result_.damage.size()), result_.read};
    const comm::Label label{comm::Purpose::control, "damage in a snapshot"};
    group_.all_gather({facts.data(), 2 * group_.size(), comm::Dtype::i64}, {mine.data(), 2, comm::Dtype::i64}, label).wait_host();
    result_.read = 0;
    size_t first = ranks;
    for (size_t rank = 0; rank < ranks; ++rank) {
      result_.read += facts[2 * rank + 1];
      if (facts[2 * rank] > 0 && first == ranks) first = rank;
    }
    if (first == ranks) return;
    result_.damage.resize(static_cast<size_t>(facts[2 * first]));
    group_.broadcast({result_.damage.data(), facts[2 * first], comm::Dtype::u8}, static_cast<int>(first), label).wait_host();
  }

  const Job& job_;
  const snapshot::OpenSnapshot& from_;
  comm::Group& group_;
  std::vector<uint8_t> reads_;  // by rank of the group: it sees the files
  std::vector<PlannedTensor> tensors_;
  std::map<std::string, std::vector<Region>> regions_;                                  // by file
  std::vector<std::vector<Unit>> units_of_;                                             // by rank of the group
  std::map<std::pair<std::string, std::string>, const snapshot::PiecedTensor*> named_;  // by section and name
  std::map<std::string, base::PositionedFile> files_;                                   // that this rank reads
  std::vector<std::byte> buffer_, out_, in_;                                            // the unit that was read; messages
  LoadedTogether result_;
};

}  // namespace

LoadedTogether load_together(const Job& job, const snapshot::OpenSnapshot& from, const std::vector<SectionToLoad>& sections) {
  const at::NoGradGuard no_gradient;
  return SharedLoad(job, from, sections).run();
}

}  // namespace cairn::train
