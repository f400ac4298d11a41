#include "data/tokenizer/byte_tokenizer.h"

#include "base/check.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer_json.h"

namespace cairn::data {
namespace {

constexpr int32_t kBytes = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;

  void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& into) const override {
    while (!text.empty()) {
      const size_t end = options.parse_special ? text.find(kEndOfText) : std::string_view::npos;
      for (const char c : text.substr(0, end)) into.push_back(static_cast<uint8_t>(c));
      if (end == std::string_view::npos) return;
      into.push_back(kBytes);
      text.remove_prefix(end + kEndOfText.size());
    }
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id > kBytes) base::fail_input("token id {}: a byte tokenizer has ids 0 to {}", id, kBytes);
      if (id == kBytes)
        text += kEndOfText;
      else
        text += static_cast<char>(id);
    }
    return text;
  }

  std::string piece(int32_t id) const override { return decode(std::span(&id, 1)); }
  int64_t vocab_size() const override { return kBytes + 1; }
  bool is_special(int32_t id) const override { return id == kBytes; }
  // Anywhere but within the one special token, which holds no space.
  bool is_split_point(char, char after) const override { return after == ' '; }

  std::optional<int32_t> id_of(std::string_view token) const override {
    if (token == kEndOfText) return kBytes;
    return token.size() == 1 ? std::optional<int32_t>(static_cast<uint8_t>(token[0])) : std::nullopt;
  }

  std::string json() const override {
    Bpe bpe;
    bpe.pre_tokenizers.clear();
    bpe.added = {{kBytes, std::string(kEndOfText)}};
    for (int byte = 0; byte < kBytes; ++byte) bpe.pieces.emplace_back(1, static_cast<char>(byte));
    bpe.pieces.emplace_back(kEndOfText);
    return write_tokenizer_json(bpe);
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace cairn::data
