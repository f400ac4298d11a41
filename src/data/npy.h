// Arrays in NumPy's file format, mapped and not copied.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::base {
class MappedFile;
}

namespace cairn::data {

struct NpyArray {
  std::string path;
  std::string type = {};              // of its values, as NumPy writes it: "|u1", "<f4"
  std::vector<int64_t> extents = {};  // every one at least 1
  std::span<const std::byte> values = {};
  std::shared_ptr<const base::MappedFile> file = {};
};

// A file of version 1 or 2 of the format in C order, whose values are of one of `types` ("|u1": uint8, "<f4": float32, "<i2", "<i4"
// and "<i8": integers). Sizes are checked against the length of the file before anything is read. `wanted` ends each refusal: "Write it
// with numpy.save, as uint8 [images, height, width]."
NpyArray open_npy(const std::string& path, std::span<const std::string_view> types, const std::string& wanted);

// Writes an array of one of these types in version 1 of the format, whole or not at all. `values` are its bytes in C order.
void write_npy(const std::filesystem::path& path, std::string_view type, std::span<const int64_t> extents,
               std::span<const std::byte> values);

}  // namespace cairn::data
