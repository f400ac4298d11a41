// The tokens of a source as one stream, over however many files.
#pragma once
#include <cstdint>
#include <vector>

#include "data/corpus/token_file.h"

namespace cairn::data {

// Target of a position without loss (PyTorch's ignore_index).
inline constexpr int64_t kIgnoreIndex = -100;

// Tokens and documents are numbered over all files. Immutable; reading copies from mapped memory and allocates nothing.
class TokenStream {
 public:
  explicit TokenStream(std::vector<TokenShard> files);

  int64_t size() const { return token_firsts_.back(); }
  int64_t documents() const { return document_firsts_.back(); }
  bool masked() const { return masked_; }  // some tokens are not targets
  const std::vector<TokenShard>& files() const { return files_; }

  int64_t document_begin(int64_t document) const;  // document_begin(documents()) is size()
  int64_t document_of(int64_t token) const;

  void copy(int64_t first, int64_t count, int64_t* into) const;
  std::vector<int32_t> ids() const;  // a copy of all of them
  // How many of these tokens are targets.
  int64_t targets_in(int64_t first, int64_t count) const;
  // Overwrites targets[i] with kIgnoreIndex where token first + i is not a target.
  void mask_non_targets(int64_t first, int64_t count, int64_t* targets) const;

 private:
  size_t file_of(const std::vector<int64_t>& firsts, int64_t at) const;

  std::vector<TokenShard> files_;
  std::vector<int64_t> token_firsts_;  // of each file, and the end
  std::vector<int64_t> document_firsts_;
  bool masked_ = false;
};

// A hash of the content: of all tokens, or of a million evenly spaced ones in a long stream. Fast on any length.
uint64_t digest(const TokenStream& row);

}  // namespace cairn::data
