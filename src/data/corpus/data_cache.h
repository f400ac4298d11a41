// A cache folder for tokens and learned tokenizers, keyed by a hash of everything that they depend on.
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
class Stop;
}  // namespace cairn::base

namespace cairn::data {

// Entries are checksummed and written atomically; several processes may share the folder. A cache never fails a run: a damaged entry counts
// as absent, an entry that cannot be written is not kept, and both are logged. Thread-safe.
class DataCache {
 public:
  // An empty folder name caches nothing. The folder is created when first needed. `log` and `stop` must outlive the cache; `stop` may be
  // null.
  DataCache(std::string folder, base::Log& log, const base::Stop* stop = nullptr);

  enum class Damage { warn, ignore };  // whether a damaged entry is logged: `ignore` where it was asked for a moment ago

  // `kind` is a short word that begins the file's name: "tokens", "tokenizer".
  std::optional<std::string> get(std::string_view kind, uint64_t key, Damage damage = Damage::warn) const;
  void put(std::string_view kind, uint64_t key, std::string_view bytes) const;

  // Tokens, which may be larger than memory: written while they are made, then mapped. `make` fills a writer and returns the facts except
  // the key. If several ranks or runs ask for one key at once, one makes the entry and the others wait. Without a folder, or where it
  // cannot be written, the tokens stay in memory.
  struct Found {
    TokenShard tokens;
    bool made = false;  // made by this call; false: found in the cache
  };
  Found tokens(uint64_t key, int64_t vocab, const std::function<TokenFacts(TokenWriter&)>& make) const;

  // The hash of a file's content, cached by its size, inode and times, so that an unchanged file is not read again.
  uint64_t content_hash(const std::string& path) const;

  // Held while an entry is made, so that others wait for it instead of making it too. Null without a folder. Who waits says so every half
  // minute, and a requested stop ends the wait with Error::Kind::cancelled.
  std::unique_ptr<FileLock> lock(std::string_view kind, uint64_t key) const;

  std::string path(std::string_view kind, uint64_t key) const;

 private:
  std::optional<TokenShard> stored_tokens(uint64_t key, Damage damage) const;

  std::string folder_;
  base::Log& log_;
  const base::Stop* stop_;
};

}  // namespace cairn::data
