#include "comm/envelope.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "comm/codec.h"

namespace cairn::comm {

std::string_view name(OperationKind kind) {
  constexpr std::array<std::string_view, 12> names{"all_reduce", "broadcast", "all_gather", "reduce_scatter",   "gather",   "scatter",
                                                   "all_to_all", "send",      "reduce",     "coded_all_reduce", "barrier",  "all_scan"};
  return names.at(static_cast<size_t>(kind));
}

std::string flaw_in(Envelope& envelope) {
  const Signature& signature = envelope.signature;
  if (signature.kind > kLastOperation) return fmt::format("operation {}", static_cast<int>(signature.kind));
  if (signature.dtype > Dtype::u8) return fmt::format("dtype {}", static_cast<int>(signature.dtype));
  if (signature.reduce > Reduce::min) return fmt::format("reduction {}", static_cast<int>(signature.reduce));
  envelope.what[sizeof(envelope.what) - 1] = 0;
  return "";
}

std::string describe(const Signature& signature, std::string_view what) {
  std::string text(name(signature.kind));
  if (!what.empty()) text += fmt::format(" of {}", what);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; },
      '?');  // the text may come from another rank
  if (signature.kind == OperationKind::barrier) return text;
  text += fmt::format(", {} {}", signature.count, name(signature.dtype));
  const bool reduces = signature.kind == OperationKind::all_reduce || signature.kind == OperationKind::reduce_scatter ||
                       signature.kind == OperationKind::reduce;
  if (reduces && signature.reduce != Reduce::sum) text += fmt::format(" {}", name(signature.reduce));
  if (signature.codec > 0) text += fmt::format(" as {}", codec_name(signature.codec));
  if (signature.root >= 0) text += fmt::format(", root {}", signature.root);
  return text;
}

uint32_t label_hash(std::string_view what) {
  uint32_t hash = 0x811c9dc5;  // FNV-1a
  for (const char c : what) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  return hash;
}

Error mismatch_error(int from, const Envelope& theirs, int here, const Signature& ours, std::string_view our_what) {
  Error error(
      Error::Kind::broken_invariant,
      fmt::format("rank {} called {} where rank {} called {}: all ranks of a group must start the same operations in the same order", from,
                  describe(theirs.signature, theirs.what), here, describe(ours, our_what)));
  error.about_peer(from);
  return error;
}

bool is_mismatch(const Error& error) { return error.kind() == Error::Kind::broken_invariant && error.peer() >= 0; }

}  // namespace cairn::comm
