#include "data/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include "base/check.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/piece_text.h"
#include "data/tokenizer/sentencepiece_json.h"
#include "data/tokenizer/sentencepiece_model.h"

namespace cairn::data {
namespace {

AddedTokens control_tokens(const SentencepieceModel& model) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> texts;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].kind != ScoredPiece::Kind::control) continue;
    tokens.push_back({.id = static_cast<int32_t>(id), .text = model.pieces[id].text});
    texts.push_back(model.pieces[id].text);
  }
  return AddedTokens(std::move(tokens), texts);
}

class SentencepieceTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;

  SentencepieceTokenizer(const std::string& bytes, const std::string& name, bool add_bos)
      : name_(name), add_bos_(add_bos), model_(read_sentencepiece_model(bytes, name)), controls_(control_tokens(model_)) {
    try {
      const auto status = processor_.LoadFromSerializedProto(bytes);
      if (!status.ok()) base::fail_input("{}: SentencePiece refuses it: {}", name, status.ToString());
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // of the tries that it builds
      base::fail_input("{}: SentencePiece refuses it: {}", name, error.what());
    }
    if (processor_.GetPieceSize() != static_cast<int>(model_.pieces.size()))
      base::fail_input("{}: SentencePiece reads {} pieces of {}", name, processor_.GetPieceSize(), model_.pieces.size());
    for (size_t id = 0; id < model_.pieces.size(); ++id) ids_.emplace(model_.pieces[id].text, static_cast<int32_t>(id));
    Declared own;
    if (processor_.bos_id() >= 0) own.begin = processor_.bos_id();
    if (processor_.eos_id() >= 0) own.end = processor_.eos_id();
    declare(own);
  }

  void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& into) const override {
    if (options.add_special)
      for (const int32_t id : begin_ids()) into.push_back(id);
    for_each_part(
        text, controls_, options.parse_special,
        [&](std::string_view part, size_t) {
          std::vector<int> ids;
          const auto status = processor_.Encode({part.data(), part.size()}, &ids);
          if (!status.ok()) base::fail_input("{}: a text of {} bytes could not be encoded: {}", name_, part.size(), status.ToString());
          into.insert(into.end(), ids.begin(), ids.end());
        },
        [&](const AddedToken& token) { into.push_back(token.id); });
  }

  // Control tokens, which the library leaves out, are written by their names; the text between two of them is decoded as one.
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    std::vector<int> run;
    const auto flush = [&] {
      std::string part;
      const auto status = processor_.Decode(run, &part);
      if (!status.ok()) base::fail_input("{}: {} ids could not be decoded: {}", name_, run.size(), status.ToString());
      text += part;
      run.clear();
    };
    for (const int32_t id : ids) {
      check(id);
      if (model_.pieces[id].kind != ScoredPiece::Kind::control) {
        run.push_back(id);
        continue;
      }
      flush();
      text += model_.pieces[id].text;
    }
    flush();
    return text;
  }

  std::string piece(int32_t id) const override {
    check(id);
    const ScoredPiece& found = model_.pieces[id];
    if (found.kind == ScoredPiece::Kind::byte) {
      for (int byte = 0; byte < 256; ++byte)
        if (found.text == byte_piece(byte)) return std::string(1, static_cast<char>(byte));
    }
    std::string text = found.text;
    for (size_t at = text.find(kSpaceMark); at != std::string::npos; at = text.find(kSpaceMark, at))
      text.replace(at, kSpaceMark.size(), 1, ' ');
    return text;
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  bool is_special(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return false;
    return model_.pieces[id].kind == ScoredPiece::Kind::control || model_.pieces[id].kind == ScoredPiece::Kind::unknown;
  }
  bool is_split_point(char, char) const override { return false; }
  std::vector<int32_t> begin_ids() const override {
    return add_bos_ && processor_.bos_id() >= 0 ? std::vector<int32_t>{processor_.bos_id()} : std::vector<int32_t>{};
  }
  std::string json() const override { return sentencepiece_json(model_); }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const auto found = ids_.find(std::string(token));
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void check(int32_t id) const {
    if (id < 0 || id >= vocab_size()) base::fail_input("token id {}: this tokenizer has ids 0 to {}", id, vocab_size() - 1);
  }

  std::string name_;
  bool add_bos_;
  SentencepieceModel model_;
  AddedTokens controls_;
  sentencepiece::SentencePieceProcessor processor_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace

bool has_sentencepiece() { return true; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string bytes, const std::string& name, bool add_bos) {
  return std::make_unique<SentencepieceTokenizer>(bytes, name, add_bos);
}

}  // namespace cairn::data
