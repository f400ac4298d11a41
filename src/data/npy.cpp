#include "data/npy.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/files/mapped_file.h"

namespace cairn::data {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr int64_t kNpyHeaderBytesMax = 1 << 16;
constexpr size_t kNpyDimsMax = 8;

struct NpyType {
  std::string_view written, name;
  int64_t bytes;
};
constexpr NpyType kNpyTypes[] = {{"|u1", "uint8", 1}, {"<f4", "float32", 4}, {"<i2", "int16", 2}, {"<i4", "int32", 4}, {"<i8", "int64", 8}};

const NpyType& npy_type(std::string_view written) {
  return *std::find_if(std::begin(kNpyTypes), std::end(kNpyTypes), [&](const NpyType& one) { return one.written == written; });
}

// The header of a file, which is the text of a Python dict.
class NpyHeader {
 public:
  NpyHeader(const std::string& path, std::string_view text, const std::string& wanted) : path_(path), text_(text), wanted_(wanted) {}

  [[noreturn]] void fail(const std::string& wrong) const { base::fail_input("{}: {}. {}", path_, wrong, wanted_); }

  // The text after `'key':`.
  std::string_view value(std::string_view key) const {
    const size_t at = text_.find(fmt::format("'{}':", key));
    if (at == std::string_view::npos) fail(fmt::format("its header has no {}", key));
    std::string_view rest = text_.substr(at + key.size() + 3);
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    return rest;
  }

  // "(100, 16, 32, 32), ..."
  std::vector<int64_t> extents() const {
    std::string_view text = value("shape");
    const size_t end = text.find(')');
    if (text.empty() || text.front() != '(' || end == std::string_view::npos) fail("its header has no shape");
    text = text.substr(1, end - 1);
    std::vector<int64_t> extents;
    while (true) {
      while (!text.empty() && (text.front() == ' ' || text.front() == ',')) text.remove_prefix(1);
      if (text.empty()) return extents;
      int64_t extent = 0;
      const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
      if (error != std::errc() || extent < 1 || extents.size() == kNpyDimsMax) fail("its shape cannot be read");
      extents.push_back(extent);
      text.remove_prefix(static_cast<size_t>(after - text.data()));
    }
  }

 private:
  const std::string& path_;
  std::string_view text_;
  const std::string& wanted_;
};

}  // namespace

NpyArray open_npy(const std::string& path, std::span<const std::string_view> types, const std::string& wanted) {
  NpyArray array{.path = path, .file = base::MappedFile::open(path, Error::Kind::bad_input)};
  const std::span<const std::byte> bytes = array.file->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const NpyHeader none(path, "", wanted);
  if (text.size() < 12 || !text.starts_with(kNpyMagic)) none.fail("is not a NumPy file");
  const auto byte = [&](size_t i) { return static_cast<int64_t>(std::to_integer<uint8_t>(bytes[i])); };
  if (byte(6) != 1 && byte(6) != 2) none.fail(fmt::format("has version {} of the format", byte(6)));
  const bool first = byte(6) == 1;
  const int64_t begin = first ? 10 : 12;
  const int64_t length = first ? byte(8) + (byte(9) << 8) : byte(8) + (byte(9) << 8) + (byte(10) << 16) + (byte(11) << 24);
  if (length > kNpyHeaderBytesMax || begin + length > static_cast<int64_t>(text.size())) none.fail("ends within its header");
  const NpyHeader header(path, text.substr(static_cast<size_t>(begin), static_cast<size_t>(length)), wanted);
  const std::string_view descr = header.value("descr");
  std::vector<std::string_view> names;
  for (const std::string_view type : types) {
    if (descr.starts_with(fmt::format("'{}'", type))) array.type = type;
    names.push_back(npy_type(type).name);
  }
  if (array.type.empty()) header.fail(fmt::format("does not hold {}", fmt::join(names, " or ")));
  if (!header.value("fortran_order").starts_with("False")) header.fail("is in Fortran's order");
  array.extents = header.extents();
  int64_t elements = npy_type(array.type).bytes;
  for (const int64_t extent : array.extents)
    if (__builtin_mul_overflow(elements, extent, &elements)) header.fail("its shape is too large");
  const int64_t held = static_cast<int64_t>(text.size()) - begin - length, each = npy_type(array.type).bytes;
  if (elements != held) header.fail(fmt::format("holds {} values, and its shape {}", held / each, elements / each));
  array.values = bytes.subspan(static_cast<size_t>(begin + length));
  return array;
}

void write_npy(const std::filesystem::path& path, std::string_view type, std::span<const int64_t> extents,
               std::span<const std::byte> values) {
  int64_t bytes = npy_type(type).bytes;
  for (const int64_t extent : extents) bytes *= extent;
  CAIRN_CHECK(bytes == static_cast<int64_t>(values.size()), "{} bytes for an array of {}", values.size(), bytes);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}", type, fmt::join(extents, ", "));
  constexpr size_t kPrefix = 10, kAlignment = 64;  // the values begin at a multiple of 64
  header.append((2 * kAlignment - (kPrefix + header.size() + 1) % kAlignment) % kAlignment, ' ');
  header += '\n';
  base::FileWriter file(path, static_cast<int64_t>(kPrefix + header.size() + values.size()));
  file.write(std::string(kNpyMagic) + '\x01' + '\0' + static_cast<char>(header.size() & 255) + static_cast<char>(header.size() >> 8));
  file.write(header);
  file.write(values);
  file.commit();
}

}  // namespace cairn::data
