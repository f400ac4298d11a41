#include "data/corpus/token_stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"

namespace cairn::data {
namespace {

// Calls act(file, first within it, count, offset from `first`) for the part of the range in each file.
template <typename Act>
void for_each_stretch(const std::vector<TokenShard>& files, const std::vector<int64_t>& firsts, size_t file, int64_t first, int64_t count,
                      Act&& act) {
  for (int64_t done = 0; done < count; ++file) {
    const int64_t begin = first + done - firsts[file];
    const int64_t take = std::min(count - done, firsts[file + 1] - firsts[file] - begin);
    if (take > 0) act(files[file], begin, take, done);
    done += take;
  }
}

uint64_t low_bits(int64_t count) { return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

}  // namespace

TokenStream::TokenStream(std::vector<TokenShard> files) : files_(std::move(files)), token_firsts_{0}, document_firsts_{0} {
  for (const TokenShard& file : files_) {
    token_firsts_.push_back(token_firsts_.back() + file.size());
    document_firsts_.push_back(document_firsts_.back() + file.documents());
    masked_ = masked_ || !file.targets.empty();
  }
}

size_t TokenStream::file_of(const std::vector<int64_t>& firsts, int64_t at) const {
  return static_cast<size_t>(std::upper_bound(firsts.begin(), firsts.end(), at) - firsts.begin()) - 1;
}

int64_t TokenStream::document_begin(int64_t document) const {
  if (document == documents()) return size();
  CAIRN_CHECK(document >= 0 && document < documents(), "document {} of {}", document, documents());
  const size_t file = file_of(document_firsts_, document);
  return token_firsts_[file] + static_cast<int64_t>(files_[file].begins[static_cast<size_t>(document - document_firsts_[file])]);
}

int64_t TokenStream::document_of(int64_t token) const {
  CAIRN_CHECK(token >= 0 && token < size(), "token {} of {}", token, size());
  const size_t file = file_of(token_firsts_, token);
  const std::span<const uint64_t> begins = files_[file].begins;
  const auto after = std::upper_bound(begins.begin(), begins.end(), static_cast<uint64_t>(token - token_firsts_[file]));
  return document_firsts_[file] + (after - begins.begin()) - 1;
}

void TokenStream::copy(int64_t first, int64_t count, int64_t* into) const {
  if (count == 0) return;
  CAIRN_CHECK(first >= 0 && first + count <= size(), "tokens {} to {} of {}", first, first + count, size());
  for_each_stretch(files_, token_firsts_, file_of(token_firsts_, first), first, count,
                   [&](const TokenShard& file, int64_t begin, int64_t take, int64_t done) {
                     if (file.narrow.empty())
                       std::copy_n(file.wide.data() + begin, take, into + done);
                     else
                       std::copy_n(file.narrow.data() + begin, take, into + done);
                   });
}

std::vector<int32_t> TokenStream::ids() const {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(size()));
  for (const TokenShard& file : files_) {
    ids.insert(ids.end(), file.narrow.begin(), file.narrow.end());
    ids.insert(ids.end(), file.wide.begin(), file.wide.end());
  }
  return ids;
}

int64_t TokenStream::targets_in(int64_t first, int64_t count) const {
  if (!masked_ || count == 0) return count;
  int64_t found = 0;
  for_each_stretch(files_, token_firsts_, file_of(token_firsts_, first), first, count,
                   [&](const TokenShard& file, int64_t begin, int64_t take, int64_t) {
                     if (file.targets.empty()) return void(found += take);
                     for (int64_t at = begin; at < begin + take;) {
                       const int64_t bits = std::min(64 - at % 64, begin + take - at);
                       found += std::popcount(file.targets[static_cast<size_t>(at / 64)] >> (at % 64) & low_bits(bits));
                       at += bits;
                     }
                   });
  return found;
}

void TokenStream::mask_non_targets(int64_t first, int64_t count, int64_t* targets) const {
  if (!masked_ || count == 0) return;
  for_each_stretch(files_, token_firsts_, file_of(token_firsts_, first), first, count,
                   [&](const TokenShard& file, int64_t begin, int64_t take, int64_t done) {
                     if (file.targets.empty()) return;
                     for (int64_t i = 0; i < take; ++i) {
                       const auto at = static_cast<size_t>(begin + i);
                       if ((file.targets[at / 64] >> (at % 64) & 1) == 0) targets[done + i] = kIgnoreIndex;
                     }
                   });
}

uint64_t digest(const TokenStream& row) {
  constexpr int64_t kStretch = 1024, kStretches = 1024;
  base::Checksum sum;
  const auto add = [&](std::span<const int64_t> numbers) { sum.add(std::as_bytes(numbers)); };
  add(std::array{row.size(), row.documents()});
  std::array<int64_t, kStretch> ids{};
  const int64_t whole = (row.size() + kStretch - 1) / kStretch, stretches = std::min(whole, kStretches);
  for (int64_t i = 0; i < stretches; ++i) {
    const int64_t first = i * whole / stretches * kStretch, count = std::min(kStretch, row.size() - first);
    row.copy(first, count, ids.data());
    add(std::span(ids).first(static_cast<size_t>(count)));
  }
  return sum.value();
}

}  // namespace cairn::data
