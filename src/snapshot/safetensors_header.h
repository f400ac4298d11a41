// The header of a safetensors file: which tensor lies where. Parsing trusts nothing that the file says.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace cairn::snapshot {

inline constexpr int64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
inline constexpr int64_t kDimsMax = 64;

struct TensorEntry {
  std::string name;
  c10::ScalarType dtype{};
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

// "F32", "BF16": the format's word for a dtype. Throws bad_input for one that it cannot hold.
const char* safetensors_dtype(c10::ScalarType dtype);

}  // namespace cairn::snapshot
