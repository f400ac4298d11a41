// The frame of the small files of selection: a magic word, a JSON header, a binary body, a checksum.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"

namespace cairn::data {

struct FramedFile {
  base::Json header;
  std::string body;
};

// Layout, little-endian: `magic` (8 bytes); the length of the header, 8 bytes; the header, with the length of the body; the body; XXH3 of
// all before, 8 bytes. Appears under its name as a whole or not at all.
void write_framed(const std::string& path, std::string_view magic, const base::OrderedJson& header, std::span<const std::byte> body);
// Refuses, naming the path and `what` it should be ("a subset"): another kind of file, a damaged one.
FramedFile read_framed(const std::string& path, std::string_view magic, std::string_view what);

// Fields of a header. Refuses a missing field or another type, naming the path.
int64_t header_count(const base::Json& header, const char* name, const std::string& path);
std::string header_text(const base::Json& header, const char* name, const std::string& path);
uint64_t header_hash(const base::Json& header, const char* name, const std::string& path);  // 16 hexadecimal digits
std::string hash_text(uint64_t hash);

}  // namespace cairn::data
