// Stands in for sentencepiece_tokenizer.cpp where Cairn is built without the SentencePiece library.
#include "base/check.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"

namespace cairn::data {

bool has_sentencepiece() { return false; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string, const std::string& name, bool) {
  base::fail_input(
      "{}: a SentencePiece model, and Cairn was built without that library: install it (Debian: libsentencepiece-dev) and build again, or "
      "give the tokenizer.json of the same model",
      name);
}

}  // namespace cairn::data
