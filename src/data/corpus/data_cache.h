// A folder of results that cost time to make, found again by a hash of what they were made from.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/corpus/file_lock.h"
#include "data/corpus/token_file.h"

namespace cairn::base {
class Log;
}

namespace cairn::data {

// Entries are checksummed and written whole or not at all; several processes may share the folder. A cache never fails a run:
// an entry that does not check is as good as absent, one that cannot be written is not kept, and the log hears of both.
class DataCache {
 public:
  // An empty folder name keeps nothing. The folder is made when first needed. `log` must outlive the cache.
  DataCache(std::string folder, base::Log& log);

  // `kind` is a short word that begins the file's name: "tokens", "tokenizer".
  std::optional<std::string> get(std::string_view kind, uint64_t key) const;
  void put(std::string_view kind, uint64_t key, std::string_view bytes) const;

  // Tokens, which may be many: written as they are made, and mapped, not read. `make` fills a writer and says what there is to know,
  // except the key. If several ranks or runs ask for one key at once, one makes it and the others wait. Without a folder, or where it
  // cannot be written, they are kept in memory.
  struct Found {
    TokenShard tokens;
    bool made = false;  // now; else it was there
  };
  Found tokens(uint64_t key, int64_t vocab, const std::function<TokenFacts(TokenWriter&)>& make) const;

  // The hash of a file's content. Found without reading it again as long as nobody has written to it.
  uint64_t content_hash(const std::string& path) const;

  // Held while an entry is made, so that others wait for it instead of making it too. Nothing without a folder.
  std::unique_ptr<FileLock> lock(std::string_view kind, uint64_t key) const;

  std::string path(std::string_view kind, uint64_t key) const;

 private:
  std::optional<TokenShard> stored_tokens(uint64_t key) const;

  std::string folder_;
  base::Log& log_;
};

}  // namespace cairn::data
