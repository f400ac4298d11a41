#include "data/corpus/token_file.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/files/mapped_file.h"

namespace cairn::data {
namespace {

constexpr int64_t kNarrowVocab = 65536;

struct Footer {
  uint64_t tokens;
  uint64_t documents;
  uint64_t target_words;  // 0: every token is a target
  uint64_t token_bytes;   // 2 or 4
  uint64_t vocab;
  uint64_t tokenizer;
  uint64_t key;
  uint64_t text_bytes;
  uint64_t bad_lines;
  char magic[8];
  uint64_t checksum;  // of everything before it
};
static_assert(sizeof(Footer) == 88);

constexpr uint64_t kLargest = uint64_t{1} << 48;  // of any count: products stay far from overflow

template <typename T>
std::span<const T> view(std::span<const std::byte> bytes, uint64_t offset, uint64_t count) {
  return {reinterpret_cast<const T*>(bytes.data() + offset), count};
}

// Why the sizes in a footer are impossible; empty: they are possible.
std::string misfit(const Footer& f, uint64_t file_bytes) {
  for (const uint64_t count : {f.tokens, f.documents, f.target_words, f.vocab, f.text_bytes, f.bad_lines})
    if (count > kLargest) return "a count in it is absurd";
  if (f.token_bytes != (f.vocab <= kNarrowVocab ? 2 : 4) || f.vocab == 0 || f.vocab > uint64_t{1} << 31)
    return fmt::format("ids of {} bytes and a vocabulary of {} do not go together", f.token_bytes, f.vocab);
  const uint64_t ids = 8 + f.tokens * f.token_bytes;
  const uint64_t expected = (ids + 7) / 8 * 8 + f.documents * 8 + f.target_words * 8 + sizeof(Footer);
  if (expected != file_bytes) return fmt::format("it has {} bytes, and its footer speaks of {}", file_bytes, expected);
  if (f.target_words != 0 && f.target_words != (f.tokens + 63) / 64) return "it has target bits for another number of tokens";
  if (f.documents > f.tokens) return "it has more documents than tokens";
  return "";
}

template <typename T>
bool below(std::span<const T> ids, int64_t vocab) {
  uint32_t largest = 0;  // as unsigned: negative ids are large
  for (const T id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  return static_cast<int64_t>(largest) < vocab;
}

}  // namespace

bool is_token_file(std::string_view head) { return head.starts_with(kTokenFileMagic); }

TokenShard read_tokens(std::span<const std::byte> bytes, std::shared_ptr<const void> memory, const std::string& origin) {
  const auto refuse_if = [&](bool wrong, const std::string& why) {
    if (wrong) base::fail_input("{}: a damaged token file: {}", origin, why);
  };
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 8));
  refuse_if(!is_token_file(head), fmt::format("it does not begin with \"{}\"", kTokenFileMagic));
  refuse_if(bytes.size() < 8 + sizeof(Footer), "it is cut short");
  Footer footer;
  std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
  refuse_if(std::memcmp(footer.magic, kTokenFileMagic.data(), 8) != 0, "its end is missing");
  const std::string why = misfit(footer, bytes.size());
  refuse_if(!why.empty(), why);
  refuse_if(base::checksum(bytes.first(bytes.size() - sizeof footer.checksum)) != footer.checksum, "its checksum does not match");

  TokenShard tokens;
  tokens.memory = std::move(memory);
  if (footer.token_bytes == 2)
    tokens.narrow = view<uint16_t>(bytes, 8, footer.tokens);
  else
    tokens.wide = view<int32_t>(bytes, 8, footer.tokens);
  const uint64_t begins = (8 + footer.tokens * footer.token_bytes + 7) / 8 * 8;
  tokens.begins = view<uint64_t>(bytes, begins, footer.documents);
  tokens.targets = view<uint64_t>(bytes, begins + footer.documents * 8, footer.target_words);
  const auto vocab = static_cast<int64_t>(footer.vocab);
  refuse_if(!below(tokens.narrow, vocab) || !below(tokens.wide, vocab), fmt::format("an id is not below its vocabulary of {}", vocab));
  const auto out_of_order = std::adjacent_find(tokens.begins.begin(), tokens.begins.end(), std::greater_equal<>());
  refuse_if(out_of_order != tokens.begins.end() ||
                (footer.documents > 0 && (tokens.begins[0] != 0 || tokens.begins.back() >= footer.tokens)) ||
                (footer.documents == 0 && footer.tokens > 0),
            "its documents are out of order");
  tokens.facts = {.tokenizer = footer.tokenizer,
                  .key = footer.key,
                  .vocab = vocab,
                  .text_bytes = static_cast<int64_t>(footer.text_bytes),
                  .bad_lines = static_cast<int64_t>(footer.bad_lines)};
  return tokens;
}

TokenShard open_token_file(const std::string& path) {
  const auto file = base::MappedFile::open(path, Error::Kind::bad_input);
  return read_tokens(file->bytes(), file, path);
}

TokenWriter::TokenWriter(Sink sink, int64_t vocab) : sink_(std::move(sink)), vocab_(vocab) {
  CAIRN_CHECK(vocab >= 1 && vocab <= int64_t{1} << 31, "vocab {}", vocab);
  put(std::as_bytes(std::span(kTokenFileMagic.data(), kTokenFileMagic.size())));
}

void TokenWriter::put(std::span<const std::byte> bytes) {
  sum_.add(bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
  sink_(bytes);
}

void TokenWriter::add(std::span<const int32_t> tokens, std::span<const int64_t> ends, std::span<const uint8_t> targets) {
  const auto count = static_cast<int64_t>(tokens.size());
  CAIRN_CHECK(targets.empty() || targets.size() == tokens.size(), "{} targets for {} tokens", targets.size(), count);
  CAIRN_CHECK(below(tokens, vocab_), "an id is not below {}", vocab_);
  int64_t begin = 0;
  const auto start = [&](int64_t end) {
    if (!inside_ && begin < end) begins_.push_back(static_cast<uint64_t>(tokens_ + begin));
  };
  for (const int64_t end : ends) {
    start(end);
    inside_ = false;
    begin = end;
  }
  start(count);
  inside_ = begin < count || (inside_ && ends.empty());

  if (!targets.empty() && !masked_) {
    masked_ = true;
    target_words_.assign(static_cast<size_t>((tokens_ + 63) / 64), ~uint64_t{0});
  }
  if (masked_) {
    target_words_.resize(static_cast<size_t>((tokens_ + count + 63) / 64), 0);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<uint64_t>(tokens_ + i);
      const uint64_t bit = uint64_t{1} << (at % 64);
      if (targets.empty() || targets[static_cast<size_t>(i)] != 0)
        target_words_[at / 64] |= bit;
      else
        target_words_[at / 64] &= ~bit;
    }
  }
  if (vocab_ <= kNarrowVocab) {
    narrow_.assign(tokens.begin(), tokens.end());
    put(std::as_bytes(std::span<const uint16_t>(narrow_)));
  } else {
    put(std::as_bytes(tokens));
  }
  tokens_ += count;
}

void TokenWriter::finish(const TokenFacts& facts) {
  static constexpr std::byte kZeros[8] = {};
  put(std::span(kZeros).first(static_cast<size_t>((8 - bytes_ % 8) % 8)));
  put(std::as_bytes(std::span<const uint64_t>(begins_)));
  if (masked_ && tokens_ % 64 != 0) target_words_.back() &= (uint64_t{1} << (tokens_ % 64)) - 1;
  put(std::as_bytes(std::span<const uint64_t>(target_words_)));
  Footer footer{.tokens = static_cast<uint64_t>(tokens_),
                .documents = begins_.size(),
                .target_words = target_words_.size(),
                .token_bytes = vocab_ <= kNarrowVocab ? uint64_t{2} : uint64_t{4},
                .vocab = static_cast<uint64_t>(vocab_),
                .tokenizer = facts.tokenizer,
                .key = facts.key,
                .text_bytes = static_cast<uint64_t>(facts.text_bytes),
                .bad_lines = static_cast<uint64_t>(facts.bad_lines),
                .magic = {},
                .checksum = 0};
  std::memcpy(footer.magic, kTokenFileMagic.data(), sizeof footer.magic);
  const auto bytes = std::as_bytes(std::span(&footer, 1));
  put(bytes.first(sizeof footer - sizeof footer.checksum));
  footer.checksum = sum_.value();
  sink_(bytes.last(sizeof footer.checksum));
}

}  // namespace cairn::data
