// A folder of results that cost time to make, found again by a hash of what they were made from.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::base {
class Log;
}

namespace cairn::data {

// Entries are checksummed and written whole or not at all; several processes may share the folder. A cache never fails a run:
// an entry that does not check is as good as absent, one that cannot be written is not kept, and the log hears of both.
class Cache {
 public:
  // An empty folder name keeps nothing. The folder is made when first needed. `log` must outlive the cache.
  Cache(std::string folder, base::Log& log);

  // `kind` is a short word that begins the file's name: "tokens", "tokenizer".
  std::optional<std::string> get(std::string_view kind, uint64_t key) const;
  void put(std::string_view kind, uint64_t key, std::string_view bytes) const;

  std::string path(std::string_view kind, uint64_t key) const;

 private:
  std::string folder_;
  base::Log& log_;
};

}  // namespace cairn::data
