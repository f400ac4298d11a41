// What `context.form = "auto"` goes by:
//
//   latency     a message of a few bytes to the rank `distance` further on, while all ranks do the same; by pair
//   bandwidth   a large message likewise, less the latency; by pair
//   card        a large message to every rank at once: where links share a card it takes as long as all of them one after the other
//   work        one call of the attention kernel on every rank at once; no time on a virtual clock, where computation is free
#include "parallel/layout/measure_links.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/attention.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kSmall = 8, kMiddle = 16 << 10, kLarge = 512 << 10;  // bytes
constexpr double kSlow_s = 2e-3;     // on the wire: where a message of kMiddle takes longer, larger ones are not tried
constexpr double kSharedFrom = 1.5;  // times a single message; n - 1 where cards are shared, 1 where not
constexpr int kRepeats = 3;          // the fastest counts: others were disturbed
constexpr comm::Label kLabel{comm::Purpose::control, "a measurement of the links"};

class Probe {
 public:
  Probe(comm::Group& cp, comm::Group& all, c10::Device device)
      : cp_(cp), all_(all), buffer_(at::zeros({cp.size() + 1, kLarge}, at::TensorOptions().dtype(at::kByte).device(device))) {}

  // Seconds until this rank has what every rank sends to the one `distance` further on; 0: to all others at once.
  double exchange_s(int64_t bytes, int distance) {
    double best = 1e30;
    for (int i = 0; i < kRepeats; ++i) best = std::min(best, once_s(bytes, distance));
    return best;
  }

  double slowest(double own) {
    all_.all_reduce({&own, 1, comm::Dtype::f64}, comm::Reduce::max, kLabel).wait_host();
    return own;
  }
  void slowest(std::vector<double>& own) {
    all_.all_reduce({own.data(), static_cast<int64_t>(own.size()), comm::Dtype::f64}, comm::Reduce::max, kLabel).wait_host();
  }

  // Floating point operations of attention in a second.
  double flops_per_s() {
    constexpr int64_t kRows = 256, kHeads = 4, kHeadDim = 64;
    const at::Tensor q = at::ones({1, kRows, kHeads, kHeadDim}, buffer_.options().dtype(at::kFloat)), out = at::empty_like(q);
    const at::Tensor lse = at::empty({1, kHeads, kRows}, q.options());
    double best = 1e30;
    for (int i = 0; i < kRepeats; ++i) {
      cp_.barrier("measurement").wait_host();
      const auto begun = now();
      kernels::attention(out, lse, q, q, q, {.causal = false});
      static_cast<void>(lse.select(1, 0).select(1, 0).item<float>());  // a GPU is done
      best = std::min(best, base::seconds(now() - begun));
    }
    const double took = slowest(best);
    return took > 0 ? 4.0 * kRows * kRows * kHeads * kHeadDim / took : 0;
  }

 private:
  std::chrono::nanoseconds now() const { return cp_.world().clock().now(); }

  double once_s(int64_t bytes, int distance) {
    const int n = cp_.size(), me = cp_.rank();
    cp_.barrier("measurement").wait_host();
    const auto begun = now();
    std::vector<comm::Work> arriving, leaving;
    for (int d = distance > 0 ? distance : 1; d <= (distance > 0 ? distance : n - 1); ++d) {
      arriving.push_back(cp_.recv(buffer_.select(0, d).narrow(0, 0, bytes), (me + n - d) % n, kLabel));
      leaving.push_back(cp_.send(buffer_.select(0, 0).narrow(0, 0, bytes), (me + d) % n, kLabel));
    }
    comm::Work::all(std::move(arriving)).wait_host();
    const double took = base::seconds(now() - begun);
    comm::Work::all(std::move(leaving)).wait_host();
    return took;
  }

  comm::Group& cp_;
  comm::Group& all_;
  at::Tensor buffer_;  // row 0 is sent; row d is received at distance d
};

}  // namespace

model::ContextLinks measure_context_links(comm::Group& cp, comm::Group& all, c10::Device device) {
  Probe probe(cp, all, device);
  const int n = cp.size(), me = cp.rank();
  const auto size = static_cast<size_t>(n);
  std::vector<double> small(size * size), large(size * size);  // [from, to]
  double wire_s = 0;
  for (int distance = 1; distance < n; ++distance)
    wire_s = std::max(wire_s, probe.exchange_s(kMiddle, distance) - probe.exchange_s(kSmall, distance));
  const int64_t bytes = probe.slowest(wire_s) > kSlow_s ? kMiddle : kLarge;
  for (int distance = 1; distance < n; ++distance) {
    const size_t pair = static_cast<size_t>((me + n - distance) % n) * size + static_cast<size_t>(me);
    small[pair] = probe.exchange_s(kSmall, distance);
    large[pair] = probe.exchange_s(bytes, distance);
  }
  const double at_once = n > 2 ? probe.slowest(probe.exchange_s(bytes, 0) - probe.exchange_s(kSmall, 0)) : 0;
  probe.slowest(small);
  probe.slowest(large);
  double alone = 0;  // the slowest of the large messages by itself
  for (size_t i = 0; i < large.size(); ++i) alone = std::max(alone, large[i] - small[i]);
  model::ContextLinks links{.latency_s = 0,
                            .bytes_per_s = 1e30,
                            .bytes_per_s_matrix = std::vector(size, std::vector<double>(size, 1e12)),
                            .latency_s_matrix = std::vector(size, std::vector<double>(size)),
                            .shared_card = at_once > kSharedFrom * alone,
                            .flops_per_s = probe.flops_per_s(),
                            .origin = "measured"};
  for (size_t from = 0; from < size; ++from)
    for (size_t to = 0; to < size; ++to) {
      if (from == to) continue;
      const double first = small[from * size + to], rate = static_cast<double>(bytes) / std::max(large[from * size + to] - first, 1e-8);
      links.latency_s_matrix[from][to] = first;
      links.bytes_per_s_matrix[from][to] = rate;
      links.latency_s = std::max(links.latency_s, first);
      links.bytes_per_s = std::min(links.bytes_per_s, rate);
    }
  return links;
}

}  // namespace cairn::parallel
