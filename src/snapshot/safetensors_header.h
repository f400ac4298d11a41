// The header of a safetensors file: which tensor lies where. Parsing trusts nothing that the file says, and needs no libtorch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace cairn::snapshot {

// The format allows headers of 100 MB. One of this size names more tensors than any model has, and takes half a second to read.
inline constexpr int64_t kHeaderBytesMax = 32 << 20;
inline constexpr size_t kTensorsMax = 1 << 18;
inline constexpr int64_t kDimsMax = 64;

// The format's element types.
enum class SafetensorsDtype { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };
const char* word_of(SafetensorsDtype dtype);  // "F32", "BF16"
int64_t bytes_of(SafetensorsDtype dtype);
const std::string& dtype_words();  // all of them, for messages

struct TensorEntry {
  std::string name;
  SafetensorsDtype dtype{};
  std::vector<int64_t> shape = {};
  int64_t begin = 0;  // offsets into the file, not into the data part
  int64_t end = 0;
  bool operator==(const TensorEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// Reads the header at the start of `file`, the whole file's bytes. Throws corrupt_file with `path`, the tensor and the reason.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path);

// The first bytes of a file that holds these tensors one after the other (length, JSON, padding to 8 bytes). Only name, dtype and
// shape of the entries are read; their offsets are assigned.
std::string format_safetensors_header(std::vector<TensorEntry>& entries, const std::map<std::string, std::string>& metadata);

}  // namespace cairn::snapshot
