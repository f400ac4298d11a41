#include "data/corpus/data_cache.h"

#include <cstring>
#include <filesystem>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "data/corpus/file_reader.h"

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

// A file written this recently may be written again without a change of its times: file systems count in ticks.
constexpr int64_t kFreshNs = 2'000'000'000;
constexpr double kSayEverySeconds = 30;  // while it waits for another process

// Removes temporary files of this entry that a dead process left behind. Call it with the entry's lock held.
void remove_parts(const std::filesystem::path& target) {
  std::error_code ignored;
  const std::string begin = "." + target.filename().string() + ".";
  for (const auto& entry : std::filesystem::directory_iterator(target.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && name.ends_with(".part")) std::filesystem::remove(entry.path(), ignored);
  }
}

void warn_of_damage(base::Log& log, const std::string& file, std::string_view why) {
  log.warn("cache entry {} is ignored and made anew: {}", file, why);
}

TokenShard made_in_memory(int64_t vocab, const std::function<TokenFacts(TokenWriter&)>& make) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  TokenWriter writer([&](std::span<const std::byte> more) { bytes->insert(bytes->end(), more.begin(), more.end()); }, vocab);
  writer.finish(make(writer));
  return read_tokens(*bytes, bytes, "tokens in memory");
}

}  // namespace

DataCache::DataCache(std::string folder, base::Log& log, const base::Stop* stop) : folder_(std::move(folder)), log_(log), stop_(stop) {}

std::string DataCache::path(std::string_view kind, uint64_t key) const { return fmt::format("{}/{}-{:016x}", folder_, kind, key); }

std::optional<std::string> DataCache::get(std::string_view kind, uint64_t key, Damage damage) const {
  if (folder_.empty() || !std::filesystem::exists(path(kind, key))) return std::nullopt;
  const auto useless = [&](std::string_view why) {
    if (damage == Damage::warn) warn_of_damage(log_, path(kind, key), why);
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

void DataCache::put(std::string_view kind, uint64_t key, std::string_view bytes) const {
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

std::optional<TokenShard> DataCache::stored_tokens(uint64_t key, Damage damage) const {
  const std::string file = path("tokens", key);
  if (!std::filesystem::exists(file)) return std::nullopt;
  try {
    TokenShard tokens = open_token_file(file);
    if (tokens.facts.key == key) return tokens;
    if (damage == Damage::warn) warn_of_damage(log_, file, "it is not what its name says");
  } catch (const Error& error) {
    if (damage == Damage::warn) warn_of_damage(log_, file, error.sentence());
  }
  return std::nullopt;
}

std::unique_ptr<FileLock> DataCache::lock(std::string_view kind, uint64_t key) const {
  if (folder_.empty()) return nullptr;
  base::make_folder(folder_);
  const std::string target = path(kind, key);
  double say_at = 0;
  return std::make_unique<FileLock>(target + ".lock", [&](double waited_s, const std::string& holder) {
    if (stop_ && stop_->requested())
      throw Error(Error::Kind::cancelled, fmt::format("stopped while waiting for {}, which makes {}", holder, target));
    if (waited_s < say_at) return;
    say_at = waited_s + kSayEverySeconds;
    log_.info("waits for {}, which makes {} waited_s={:.0f}", holder, target, waited_s);
  });
}

DataCache::Found DataCache::tokens(uint64_t key, int64_t vocab, const std::function<TokenFacts(TokenWriter&)>& make) const {
  if (folder_.empty()) return {made_in_memory(vocab, make), true};
  const std::string target = path("tokens", key);
  try {
    if (std::optional<TokenShard> found = stored_tokens(key, Damage::warn)) return {*found, false};
    const std::unique_ptr<FileLock> held = lock("tokens", key);
    if (std::optional<TokenShard> found = stored_tokens(key, Damage::ignore)) return {*found, false};  // made since
    if (held->held()) remove_parts(target);
    base::FileWriter file(target);
    TokenWriter writer([&](std::span<const std::byte> bytes) { file.write(bytes); }, vocab);
    TokenFacts facts = make(writer);
    facts.key = key;
    writer.finish(facts);
    file.commit();
    return {open_token_file(target), true};
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::disk) throw;
    log_.warn("cache entry is not kept: {}", error.what());
  }
  return {made_in_memory(vocab, make), true};
}

uint64_t DataCache::content_hash(const std::string& file_path) const {
  FileReader file(file_path);
  const FileStamp& stamp = file.stamp();
  const std::string named = fmt::format("{}|{}|{}|{}|{}|{}", std::filesystem::absolute(file_path).string(), stamp.bytes, stamp.inode,
                                        stamp.device, stamp.modified_ns, stamp.changed_ns);
  const uint64_t key = base::checksum(named);
  uint64_t hash = 0;
  if (const std::optional<std::string> known = get("file", key); known && known->size() == sizeof hash) {
    std::memcpy(&hash, known->data(), sizeof hash);
    return hash;
  }
  hash = hash_content(file);
  const bool settled = base::wall_time() * 1e9 - static_cast<double>(stamp.changed_ns) > static_cast<double>(kFreshNs);
  if (settled && FileReader(file_path).stamp() == stamp)
    put("file", key, std::string_view(reinterpret_cast<const char*>(&hash), sizeof hash));
  return hash;
}

}  // namespace cairn::data
