#include "snapshot/piece_index.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/json.h"
#include "snapshot/manifest.h"

namespace cairn::snapshot {
namespace {

constexpr int kPieceIndexDepth = 12;
constexpr int64_t kBoxesMax = 1 << 17;  // of one tensor: far more than layouts have, and few enough to compare

base::OrderedJson json_of(const mesh::Interval& interval) { return base::OrderedJson::array({interval.begin, interval.end}); }

base::OrderedJson json_of(const Piece& piece) {
  base::OrderedJson dims = base::OrderedJson::array();
  for (const auto& dim : piece.fragment.local_shard.dims) {
    base::OrderedJson held = base::OrderedJson::array();
    for (const mesh::Interval& interval : dim) held.push_back(json_of(interval));
    dims.push_back(std::move(held));
  }
  return {{"file", piece.file}, {"name", piece.name}, {"dims", std::move(dims)}, {"elements", json_of(piece.fragment.elements)}};
}

class IndexParser {
 public:
  IndexParser(const std::string& path, bool whole) : path_(path), whole_(whole) {}

  PieceIndex parse(const base::Json& json) {
    if (!json.is_object()) fail("not a JSON object");
    PieceIndex index;
    for (const auto& [section, tensors] : json.items()) {
      if (!is_section_name(section)) fail("a section with a name that none has");
      if (!tensors.is_array()) fail(fmt::format("section {} is no list", section));
      std::set<std::string> names;
      for (const base::Json& one : tensors) {
        index[section].push_back(tensor(one));
        if (!names.insert(index[section].back().name).second) fail(fmt::format("{} twice", index[section].back().name));
      }
    }
    return index;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { base::fail_corrupt(path_, reason); }

  const base::Json& member(const base::Json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key)) fail(fmt::format("no {} where there should be one", key));
    return object[key];
  }
  std::string text(const base::Json& object, const char* key) const {
    const base::Json& found = member(object, key);
    if (!found.is_string()) fail(fmt::format("{} is no text", key));
    return found.get<std::string>();
  }
  int64_t number(const base::Json& found, const char* key) const {
    if (!found.is_number_unsigned() || found.get<uint64_t>() > (uint64_t{1} << 56)) fail(fmt::format("{} holds no number that fits", key));
    return found.get<int64_t>();
  }
  mesh::Interval interval(const base::Json& pair, int64_t end_max, const char* key) const {
    if (!pair.is_array() || pair.size() != 2) fail(fmt::format("{} holds no pair of numbers", key));
    const mesh::Interval found{number(pair[0], key), number(pair[1], key)};
    if (found.begin > found.end || found.end > end_max) fail(fmt::format("{} holds {} to {}, of {}", key, found.begin, found.end, end_max));
    return found;
  }

  const base::Json& list(const base::Json& object, const char* key) const {
    const base::Json& found = member(object, key);
    if (!found.is_array()) fail(fmt::format("{} is no list", key));
    return found;
  }

  // At least as many as its fragment consists of.
  static int64_t boxes_of_most(const Piece& piece) {
    const auto& dims = piece.fragment.local_shard.dims;
    int64_t boxes = 2 * static_cast<int64_t>(dims.size()) + 1;
    for (const auto& dim : dims) boxes = std::min(kBoxesMax + 1, boxes * std::max<int64_t>(1, static_cast<int64_t>(dim.size())));
    return boxes;
  }

  PiecedTensor tensor(const base::Json& json) const {
    PiecedTensor tensor{.name = text(json, "name"), .dtype = dtype_from_word(text(json, "dtype")), .shape = {}, .pieces = {}};
    int64_t elements = 1;  // with 1 for dims of length 0, so that no stride overflows either
    for (const base::Json& size : list(json, "shape")) {
      tensor.shape.push_back(number(size, "shape"));
      if (__builtin_mul_overflow(elements, std::max<int64_t>(1, tensor.shape.back()), &elements) || elements > int64_t{1} << 56)
        fail(fmt::format("{} is too large", tensor.name));
    }
    if (static_cast<int64_t>(tensor.shape.size()) > kDimsMax) fail(fmt::format("{} has too many dims", tensor.name));
    int64_t boxes = 0;
    for (const base::Json& one : list(json, "pieces")) {
      tensor.pieces.push_back(piece(one, tensor));
      boxes += boxes_of_most(tensor.pieces.back());
      if (boxes > kBoxesMax) fail(fmt::format("{} is in more than {} boxes", tensor.name, kBoxesMax));
    }
    if (whole_) check_cover(tensor);
    return tensor;
  }

  SafetensorsDtype dtype_from_word(const std::string& word) const {
    for (const SafetensorsDtype dtype :
         {SafetensorsDtype::f64, SafetensorsDtype::f32, SafetensorsDtype::f16, SafetensorsDtype::bf16, SafetensorsDtype::i64,
          SafetensorsDtype::i32, SafetensorsDtype::i16, SafetensorsDtype::i8, SafetensorsDtype::u8, SafetensorsDtype::boolean})
      if (word == word_of(dtype)) return dtype;
    fail(fmt::format("dtype {}: known are {}", word, dtype_words()));
  }

  Piece piece(const base::Json& json, const PiecedTensor& of) const {
    Piece piece{.file = text(json, "file"), .name = text(json, "name"), .fragment = {}};
    if (!is_file_name(piece.file) || !is_rank_file(piece.file)) fail(fmt::format("{} has a piece in no file of a snapshot", of.name));
    const base::Json& dims = member(json, "dims");
    if (!dims.is_array() || dims.size() != of.shape.size()) fail(fmt::format("{} has a piece of another shape", of.name));
    int64_t local = 1;
    for (size_t d = 0; d < of.shape.size(); ++d) {
      std::vector<mesh::Interval>& held = piece.fragment.local_shard.dims.emplace_back();
      int64_t length = 0;
      if (!dims[d].is_array()) fail("dims holds no lists of intervals");
      for (const base::Json& pair : dims[d]) {
        held.push_back(interval(pair, of.shape[d], "dims"));
        length += held.back().length();
      }
      if (length > of.shape[d]) fail(fmt::format("{} has a piece with more than all of a dim", of.name));
      local *= length;
    }
    piece.fragment.elements = interval(member(json, "elements"), local, "elements");
    return piece;
  }

  // Pieces are boxes; together they have all elements, and no two the same.
  void check_cover(const PiecedTensor& tensor) const {
    std::vector<mesh::Box> boxes;
    int64_t elements = 0;
    for (const Piece& piece : tensor.pieces)
      for (const mesh::FragmentBox& one : mesh::boxes_of(piece.fragment)) {
        boxes.push_back(one.box);
        elements += one.box.elements();
      }
    const int64_t all = mesh::whole(tensor.shape).elements();
    if (elements != all) fail(fmt::format("{}: its pieces have {} of {} elements", tensor.name, elements, all));
    std::sort(boxes.begin(), boxes.end());
    for (size_t i = 0; i < boxes.size(); ++i)
      for (size_t j = i + 1; j < boxes.size(); ++j) {
        if (!boxes[i].dims.empty() && boxes[j].dims[0].begin >= boxes[i].dims[0].end) break;
        if (mesh::intersect(boxes[i], boxes[j]))
          fail(fmt::format("{}: {} and {} overlap", tensor.name, mesh::to_string(boxes[i]), mesh::to_string(boxes[j])));
      }
  }

  const std::string& path_;
  const bool whole_;  // pieces cover their tensors
};

}  // namespace

base::OrderedJson piece_index_to_json(const PieceIndex& index) {
  base::OrderedJson json = base::OrderedJson::object();
  for (const auto& [section, tensors] : index) {
    base::OrderedJson& list = json[section] = base::OrderedJson::array();
    for (const PiecedTensor& tensor : tensors) {
      base::OrderedJson pieces = base::OrderedJson::array();
      for (const Piece& piece : tensor.pieces) pieces.push_back(json_of(piece));
      list.push_back({{"name", tensor.name}, {"dtype", word_of(tensor.dtype)}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}});
    }
  }
  return json;
}

std::string format_piece_index(const PieceIndex& index) { return base::compact(piece_index_to_json(index)) + "\n"; }

PieceIndex parse_piece_index(const std::string& text, const std::string& path) {
  const base::GuardedJson parsed = base::parse_json_guarded(text, kPieceIndexDepth);
  if (!parsed.trouble.empty()) base::fail_corrupt(path, parsed.trouble);
  return IndexParser(path, /*whole=*/true).parse(parsed.value);
}

PieceIndex parse_some_pieces(const base::Json& json, const std::string& path) { return IndexParser(path, /*whole=*/false).parse(json); }

void add_pieces(PieceIndex& index, const PieceIndex& more) {
  for (const auto& [section, tensors] : more) {
    std::vector<PiecedTensor>& all = index[section];
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < all.size(); ++i) places[all[i].name] = i;
    for (const PiecedTensor& tensor : tensors) {
      const auto [found, added] = places.emplace(tensor.name, all.size());
      if (added) {
        all.push_back(tensor);
        continue;
      }
      PiecedTensor& same = all[found->second];
      CAIRN_CHECK(same.dtype == tensor.dtype && same.shape == tensor.shape, "ranks have saved {} of different shapes", tensor.name);
      same.pieces.insert(same.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
    }
  }
}

}  // namespace cairn::snapshot
