#include "data/tokenizer.h"

#include "base/checksum.h"

namespace cairn::data {

uint64_t hash(const Tokenizer& tokenizer) { return base::checksum(tokenizer.json()); }

}  // namespace cairn::data
