#include "data/byte_tokenizer.h"

#include "base/check.h"
#include "data/special_split.h"
#include "data/tokenizer_json.h"

namespace cairn::data {
namespace {

constexpr int32_t kBytes = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for_each_part(
        text, std::span(&end_, 1),
        [&](std::string_view part) {
          for (const char c : part) ids.push_back(static_cast<uint8_t>(c));
        },
        [&](int32_t id) { ids.push_back(id); });
    return ids;
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

  int64_t vocab_size() const override { return kBytes + 1; }
  int32_t end_of_text() const override { return kBytes; }

  std::string json() const override {
    Bpe bpe{.pieces = {}, .merges = {}, .specials = {end_}, .words = false};
    for (int byte = 0; byte < kBytes; ++byte) bpe.pieces.emplace_back(1, static_cast<char>(byte));
    bpe.pieces.emplace_back(kEndOfText);
    return write_tokenizer_json(bpe);
  }

 private:
  SpecialToken end_{kBytes, std::string(kEndOfText)};
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace cairn::data
