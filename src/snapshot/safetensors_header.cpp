#include "snapshot/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json/scan.h"

namespace cairn::snapshot {
namespace {

struct Known {
  const char* word;
  int64_t bytes;
};
// In the order of the enumerators.
constexpr std::array<Known, 10> kDtypes{
    {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1}, {"U8", 1}, {"BOOL", 1}}};

constexpr int64_t kStringBytesMax = 1 << 20;

// A string of an untrusted file, fit to stand in a message: short, printable, in quotes.
std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 80)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > 80 ? "...\"" : "\"");
}

// Collects the header while nlohmann's parser walks over it, and stops the walk at the first thing that does not belong there. The
// parser itself keeps no tree and does not recurse, so depth and size of a hostile header cost nothing.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  struct Raw {
    std::string name;
    SafetensorsDtype dtype{};
    std::vector<uint64_t> shape = {}, offsets = {};
    bool has_dtype = false, has_shape = false, has_offsets = false;
  };

  std::vector<Raw> tensors;
  std::map<std::string, std::string> metadata;
  std::string trouble;  // the first one

  bool null() override { return stop("a null"); }
  bool boolean(bool) override { return stop("a true or false"); }
  bool number_integer(int64_t value) override { return stop(fmt::format("the negative number {}", value)); }
  bool number_float(double, const std::string& text) override { return stop("the number " + in_quotes(text).substr(1, 40)); }
  bool binary(binary_t&) override { return stop("binary data"); }

  bool number_unsigned(uint64_t value) override {
    std::vector<uint64_t>* into = list();
    if (!into) return stop(fmt::format("the number {}", value));
    if (into->size() >= static_cast<size_t>(field_ == "shape" ? kDimsMax : 2)) return fail(fmt::format("{} has too many numbers", field_));
    into->push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (depth_ == 2 && in_metadata_)
      return metadata.emplace(field_, value).second || fail("__metadata__ names " + in_quotes(field_) + " twice");
    if (depth_ != 2 || field_ != "dtype") return stop("the text " + in_quotes(value));
    const auto* found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Known& d) { return value == d.word; });
    if (found == kDtypes.end()) return fail(fmt::format("dtype {} is not one of {}", in_quotes(value), dtype_words()));
    tensors.back().dtype = static_cast<SafetensorsDtype>(found - kDtypes.begin());
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ > 1 || (depth_ == 1 && field_.empty() && !named_)) return stop("an object");
    ++depth_;
    return true;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) return open_tensor(name);
    field_ = name;
    if (in_metadata_) return true;
    Raw& tensor = tensors.back();
    bool* seen = name == "dtype"          ? &tensor.has_dtype
                 : name == "shape"        ? &tensor.has_shape
                 : name == "data_offsets" ? &tensor.has_offsets
                                          : nullptr;
    if (!seen) return fail("unknown key " + in_quotes(name));
    if (std::exchange(*seen, true)) return fail(name + " is given twice");
    return true;
  }

  bool end_object() override {
    if (--depth_ == 1 && !in_metadata_) {
      const Raw& tensor = tensors.back();
      const char* missing = !tensor.has_dtype ? "dtype" : !tensor.has_shape ? "shape" : !tensor.has_offsets ? "data_offsets" : nullptr;
      if (missing) return fail(fmt::format("{} is missing", missing));
      if (tensor.offsets.size() != 2) return fail("data_offsets must be two numbers");
    }
    in_metadata_ = in_metadata_ && depth_ == 2;
    named_ = false;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_list_ || (field_ != "shape" && field_ != "data_offsets")) return stop("a list");
    in_list_ = true;
    return true;
  }
  bool end_array() override { return std::exchange(in_list_, false); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (trouble.empty()) trouble = fmt::format("the header is not JSON at byte {}", 8 + position);
    return false;
  }

 private:
  bool open_tensor(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    named_ = true;
    field_.clear();
    if (in_metadata_) return !std::exchange(has_metadata_, true) || stop("a second __metadata__");
    if (tensors.size() == kTensorsMax) return fail(fmt::format("more than {} tensors", kTensorsMax));
    tensors.push_back({.name = name});
    return names_.insert(name).second || fail("is named twice");
  }

  std::vector<uint64_t>* list() {
    if (!in_list_) return nullptr;
    return field_ == "shape" ? &tensors.back().shape : &tensors.back().offsets;
  }

  bool fail(const std::string& reason) {
    trouble = !named_ || in_metadata_ || tensors.empty() ? reason : fmt::format("tensor {}: {}", in_quotes(tensors.back().name), reason);
    return false;
  }
  bool stop(const std::string& what) {
    const std::string where = field_.empty() ? "" : " under " + in_quotes(field_);
    return fail(fmt::format("{}{} is not what a safetensors header holds", what, where));
  }

  std::set<std::string> names_;
  std::string field_;  // the key within a tensor or within __metadata__
  int depth_ = 0;
  bool named_ = false, in_metadata_ = false, has_metadata_ = false, in_list_ = false;
};

// dtype x shape in bytes; nothing where that does not fit, even if a dim of 0 makes it empty: strides must fit too.
std::optional<int64_t> byte_size(const Reader::Raw& raw) {
  int64_t bytes = bytes_of(raw.dtype);
  bool empty = false;
  for (const uint64_t dim : raw.shape) {
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, static_cast<int64_t>(dim)), &bytes)) return std::nullopt;
    empty = empty || dim == 0;
  }
  return empty ? 0 : bytes;
}

TensorEntry checked_entry(const Reader::Raw& raw, int64_t data_begin, int64_t data_bytes, const std::string& path) {
  const std::string tensor = "tensor " + in_quotes(raw.name);
  const std::optional<int64_t> bytes = byte_size(raw);
  if (!bytes) base::fail_corrupt(path, fmt::format("{}: shape [{}] is larger than any memory", tensor, fmt::join(raw.shape, ", ")));
  const uint64_t begin = raw.offsets[0], end = raw.offsets[1];
  if (begin > end) base::fail_corrupt(path, fmt::format("{}: data_offsets [{}, {}] run backwards", tensor, begin, end));
  if (end > static_cast<uint64_t>(data_bytes)) {
    base::fail_corrupt(path,
                       fmt::format("{}: data_offsets [{}, {}] reach beyond the file's {} bytes of data", tensor, begin, end, data_bytes));
  }
  if (end - begin != static_cast<uint64_t>(*bytes)) {
    base::fail_corrupt(path, fmt::format("{}: data_offsets [{}, {}] hold {} bytes, but {} of shape [{}] is {} bytes", tensor, begin, end,
                                         end - begin, word_of(raw.dtype), fmt::join(raw.shape, ", "), *bytes));
  }
  return {.name = raw.name,
          .dtype = raw.dtype,
          .shape = {raw.shape.begin(), raw.shape.end()},
          .begin = data_begin + static_cast<int64_t>(begin),
          .end = data_begin + static_cast<int64_t>(end)};
}

// Sorts by place and refuses overlaps and holes: every byte of data belongs to exactly one tensor.
void check_cover(std::vector<TensorEntry>& entries, int64_t data_begin, int64_t file_bytes, const std::string& path) {
  std::sort(entries.begin(), entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  int64_t covered = data_begin;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < covered)
      base::fail_corrupt(path, fmt::format("tensor {}: its bytes overlap those of {}", in_quotes(entry.name), in_quotes(before->name)));
    if (entry.begin > covered)
      base::fail_corrupt(path,
                         fmt::format("tensor {}: {} bytes before it belong to no tensor", in_quotes(entry.name), entry.begin - covered));
    covered = entry.end;
    before = &entry;
  }
  if (covered != file_bytes) base::fail_corrupt(path, fmt::format("{} bytes at the end belong to no tensor", file_bytes - covered));
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path) {
  const auto file_bytes = static_cast<int64_t>(file.size());
  if (file_bytes < 8) base::fail_corrupt(path, fmt::format("{} bytes is too short for a safetensors file", file_bytes));
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < 8; ++i) header_bytes |= static_cast<uint64_t>(file[i]) << (8 * i);
  if (header_bytes > static_cast<uint64_t>(kHeaderBytesMax)) {
    base::fail_corrupt(path,
                       fmt::format("header length {} is above the limit of {}: not a safetensors file?", header_bytes, kHeaderBytesMax));
  }
  if (header_bytes > static_cast<uint64_t>(file_bytes - 8)) {
    base::fail_corrupt(path, fmt::format("header length {} is more than the {} bytes the file has left", header_bytes, file_bytes - 8));
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  // The parser would build the longest of strings before it looks at it, and takes a NUL for the end.
  const base::JsonLimits limits{.depth = INT_MAX, .tree_bytes = 256 << 20, .string_bytes = kStringBytesMax};
  if (const base::JsonScan scan = base::scan_json({text, header_bytes}, limits); !scan.trouble.empty())
    base::fail_corrupt(path, fmt::format("its header of {} bytes: {}", header_bytes, scan.trouble));
  Reader reader;
  if (!nlohmann::json::sax_parse(text, text + header_bytes, &reader)) {
    base::fail_corrupt(path, reader.trouble.empty() ? "the header is not a JSON object of tensors" : reader.trouble);
  }
  SafetensorsHeader header{.entries = {}, .metadata = std::move(reader.metadata)};
  const int64_t data_begin = 8 + static_cast<int64_t>(header_bytes);
  for (const Reader::Raw& raw : reader.tensors) {
    header.entries.push_back(checked_entry(raw, data_begin, file_bytes - data_begin, path));
  }
  check_cover(header.entries, data_begin, file_bytes, path);
  return header;
}

std::string format_safetensors_header(std::vector<TensorEntry>& entries, const std::map<std::string, std::string>& metadata) {
  const auto text = [](const std::string& s) {
    try {
      return nlohmann::json(s).dump();
    } catch (const nlohmann::json::exception&) {
      base::fail_input("tensor {}: a name must be UTF-8", in_quotes(s));
    }
  };
  std::string json = "{\"__metadata__\":{";
  for (const auto& [key, value] : metadata) json += fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", text(key), text(value));
  json += "}";
  std::set<std::string> names{"__metadata__"};
  int64_t offset = 0;
  for (TensorEntry& entry : entries) {
    if (!names.insert(entry.name).second) base::fail_input("tensor {}: the name is taken, cannot be saved twice", in_quotes(entry.name));
    int64_t bytes = bytes_of(entry.dtype);
    for (const int64_t dim : entry.shape) bytes *= dim;
    entry.begin = std::exchange(offset, offset + bytes);
    entry.end = offset;
    json += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text(entry.name), word_of(entry.dtype),
                        fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');  // the data begins at a multiple of 8
  if (static_cast<int64_t>(json.size()) > kHeaderBytesMax) base::fail_input("{} tensors do not fit one safetensors header", entries.size());
  std::string out;
  for (size_t i = 0; i < 8; ++i) out += static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i));
  const auto data_begin = static_cast<int64_t>(8 + json.size());
  for (TensorEntry& entry : entries) entry.begin += data_begin, entry.end += data_begin;
  return out + json;
}

const char* word_of(SafetensorsDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].word; }
int64_t bytes_of(SafetensorsDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }

const std::string& dtype_words() {
  static const std::string words = [] {
    std::string all;
    for (const Known& one : kDtypes) all += fmt::format("{}{}", all.empty() ? "" : ", ", one.word);
    return all;
  }();
  return words;
}

}  // namespace cairn::snapshot
