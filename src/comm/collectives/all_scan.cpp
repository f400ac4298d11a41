// All-Scan (ZeCO, arXiv:2507.01004): a state passes along the ranks, and each rank changes it by an affine map of its own.
//
//   before(p) = A(p-1) before(p-1) + s(p-1),  before(0) = 0         every rank gets what comes in ...
//   after(p)  = A(p) before(p) + s(p)                               ... and what goes out
//
// The state is cut into K blocks, and rank p sends a block on as soon as it has received and changed it:
//
//   rank 0   s0 s1 s2 s3                 block k of rank p leaves in round p + k
//   rank 1      r0 r1 r2 r3
//   rank 2         r0 r1 r2 r3
//
// Each rank but the last sends one state of S bytes, whatever their number. With bandwidth B, latency l and an overhead o for each message
// the last rank has its state after (K + P - 2) (S / (K B) + o) + (P - 1) l, which is least at K = sqrt((P - 2) S / (B o)). (The paper
// counts l with each block, as links do that carry one message at a time.) An all-gather of the states takes (P - 1) S / B + l.
//
// States are f32 or f64. Where `before` is bf16 they are rounded each time they leave a rank: half the bytes, an error that grows with P.
#include <algorithm>
#include <cstring>

#include "comm/affine_map.h"
#include "comm/codec.h"
#include "comm/collectives/choose_algorithm.h"
#include "comm/collectives/collectives.h"
#include "comm/collectives/layout.h"

namespace cairn::comm {
namespace {

// How the elements of f32 states are written while they travel; null: as they are.
std::unique_ptr<const Codec> make_travel_codec(Dtype kept, Dtype sent) { return kept == sent ? nullptr : make_codec(name(sent)); }

}  // namespace

Coroutine all_scan(Exchange& exchange, const Arguments& arguments) {
  const AffineMap& map = *arguments.map;
  const Span &before = arguments.out, &state = arguments.in;
  const int me = exchange.rank(), direction = arguments.root == 0 ? 1 : -1;
  const bool first = me == arguments.root, last = me == exchange.size() - 1 - arguments.root;
  const int64_t units = state.count / std::max<int64_t>(1, map.unit()), size = size_of(before.dtype);
  const int64_t wanted =
      arguments.blocks > 0 ? arguments.blocks : choose_scan_blocks(state.count * size, exchange.size(), exchange.link_facts());
  const std::vector<int64_t> counts = even_counts(units, static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, units))));
  std::vector<int64_t> begin = starts(counts);
  for (int64_t& one : begin) one *= map.unit();
  const auto end = [&](size_t k) { return begin[k] + counts[k] * map.unit(); };
  const auto bytes = [&](size_t k) { return counts[k] * map.unit() * size; };
  const std::unique_ptr<const Codec> codec = make_travel_codec(state.dtype, before.dtype);
  std::vector<float> decoded(codec && !first ? static_cast<size_t>(counts[0] * map.unit()) : 0);  // the first block is the largest
  std::vector<std::byte> encoded(codec && !last ? static_cast<size_t>(state.count * size) : 0);

  std::vector<Completion> coming, sent;
  if (first) {
    if (before.count > 0) std::memset(before.data, 0, static_cast<size_t>(before.count * size));
  } else {
    for (size_t k = 0; k < counts.size(); ++k)
      coming.push_back(exchange.recv(me - direction, static_cast<uint32_t>(k), at_element(before, begin[k]), bytes(k)));
  }
  for (size_t k = 0; k < counts.size(); ++k) {
    if (!first) {
      Completion& here = coming[k];
      co_await here;
      const void* incoming = at_element(before, begin[k]);
      if (codec) {
        codec->decode(static_cast<const std::byte*>(incoming), end(k) - begin[k], decoded.data());
        incoming = decoded.data();
      }
      map.add_product(at_element(state, begin[k]), incoming, begin[k], end(k));
    }
    if (last) continue;
    const void* leaving = at_element(state, begin[k]);
    if (codec) {
      std::byte* to = encoded.data() + begin[k] * size;
      codec->encode(static_cast<const float*>(leaving), end(k) - begin[k], to);
      leaving = to;
    }
    sent.push_back(exchange.send(me + direction, static_cast<uint32_t>(k), leaving, bytes(k)));
  }
  for (Completion& gone : sent) co_await gone;
}

}  // namespace cairn::comm
