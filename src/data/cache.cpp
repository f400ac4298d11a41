#include "data/cache.h"

#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/log.h"

namespace cairn::data {
namespace {

// A file is this header and the bytes. Little-endian, as is every machine that Cairn runs on.
struct Header {
  char magic[8];
  uint64_t key;
  uint64_t bytes;
  uint64_t checksum;
};
constexpr char kMagic[8] = {'c', 'a', 'i', 'r', 'n', 'c', 'a', '1'};
constexpr int64_t kFileBytes = int64_t{1} << 40;

}  // namespace

Cache::Cache(std::string folder, base::Log& log) : folder_(std::move(folder)), log_(log) {}

std::string Cache::path(std::string_view kind, uint64_t key) const { return fmt::format("{}/{}-{:016x}", folder_, kind, key); }

std::optional<std::string> Cache::get(std::string_view kind, uint64_t key) const {
  if (folder_.empty() || !std::filesystem::exists(path(kind, key))) return std::nullopt;
  const auto useless = [&](std::string_view why) {
    log_.warn("cache entry {} is ignored and made anew: {}", path(kind, key), why);
    return std::nullopt;
  };
  std::string file;
  try {
    file = base::read_file(path(kind, key), kFileBytes);
  } catch (const Error& error) {
    return useless(error.sentence());
  }
  Header header;
  if (file.size() < sizeof header) return useless("it is cut short");
  std::memcpy(&header, file.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.key != key) return useless("it is not what its name says");
  file.erase(0, sizeof header);
  if (file.size() != header.bytes) return useless(fmt::format("it has {} bytes, not {}", file.size(), header.bytes));
  if (base::checksum(file) != header.checksum) return useless("its checksum does not match");
  return file;
}

void Cache::put(std::string_view kind, uint64_t key, std::string_view bytes) const {
  if (folder_.empty()) return;
  Header header{.magic = {}, .key = key, .bytes = bytes.size(), .checksum = base::checksum(bytes)};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  try {
    base::make_folder(folder_);
    base::FileWriter writer(path(kind, key), static_cast<int64_t>(sizeof header + bytes.size()));
    writer.write(std::string_view(reinterpret_cast<const char*>(&header), sizeof header));
    writer.write(bytes);
    writer.commit();
  } catch (const Error& error) {
    log_.warn("cache entry is not kept: {}", error.what());
  }
}

}  // namespace cairn::data
