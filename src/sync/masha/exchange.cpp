#include "sync/masha/exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/group.h"
#include "comm/sparsify.h"
#include "kernels/aten.h"

namespace cairn::sync {
namespace {

using comm::Indices;
using Counts = std::vector<int64_t>;

constexpr int32_t kNotFinite = -1;  // sent in place of a length: this device's message is not finite

comm::Span span_of(std::vector<float>& x) { return {x.data(), static_cast<int64_t>(x.size()), comm::Dtype::f32}; }
comm::Span span_of(std::vector<std::byte>& x) { return {x.data(), static_cast<int64_t>(x.size()), comm::Dtype::u8}; }
comm::Span span_of(std::vector<int32_t>& x) { return {x.data(), static_cast<int64_t>(x.size()), comm::Dtype::i32}; }

std::span<float> floats_of(const at::Tensor& x) { return {x.mutable_data_ptr<float>(), static_cast<size_t>(x.numel())}; }

bool all_finite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

double squared(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

// The begin of each owner's range, and the end of the last.
Counts range_ends(int64_t elements, int owners) {
  Counts ends{0};
  for (const int64_t count : comm::even_counts(elements, owners)) ends.push_back(ends.back() + count);
  return ends;
}

// The ascending indices that lie in [begin, end).
std::span<const int64_t> within(const Indices& indices, int64_t begin, int64_t end) {
  const auto first = std::lower_bound(indices.begin(), indices.end(), begin);
  return {first, std::lower_bound(first, indices.end(), end)};
}

int64_t length(std::span<const int64_t> indices) { return static_cast<int64_t>(indices.size()); }
int64_t total(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

class RandomExchange final : public MashaExchange {
 public:
  RandomExchange(const Compression& up, const Compression& down, comm::Group& peers, int64_t elements, const base::Random& random)
      : up_(up), down_(down), peers_(peers), elements_(elements), random_(random), ends_(range_ends(elements, peers.size())) {}

  Sent exchange(int64_t iteration, const at::Tensor& message, const std::vector<bool>& takes_part, const at::Tensor& mean) override {
    const int64_t taking_part = std::count(takes_part.begin(), takes_part.end(), true);
    const bool mine = takes_part[static_cast<size_t>(peers_.rank())];
    const int64_t kept = comm::kept_count(elements_, up_.density);
    const auto factor = static_cast<float>(static_cast<double>(elements_) / static_cast<double>(kept));
    std::vector<Indices> indices = indices_of(iteration, takes_part, kept);
    Sent sent;
    std::vector<float> values;
    if (mine) {
      const std::span<const float> whole = floats_of(message);
      values.resize(static_cast<size_t>(kept));
      comm::values_at(whole, indices[static_cast<size_t>(peers_.rank())], values);
      const double all = squared(whole), through = squared(values);
      sent.error_ratio = all > 0 ? std::sqrt(std::max(0.0, all - through + (factor - 1.0) * (factor - 1.0) * through) / all) : 0;
      // All values become NaN, so that every owner notices, whichever indices it gets.
      if (!std::isfinite(all)) std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
    }
    const auto scale = static_cast<float>(static_cast<double>(factor) / static_cast<double>(taking_part));
    mean.zero_();
    if (up_.common || up_.density == 1) {
      values.resize(static_cast<size_t>(kept), 0.0f);
      peers_.all_reduce(span_of(values), comm::Reduce::sum, {comm::Purpose::gradient, "differences"}).wait_host();
      comm::add_at(floats_of(mean), indices[static_cast<size_t>(peers_.rank())], values, scale);
      sent.finite = all_finite(values);
    } else {
      sent.finite = through_owners({iteration, scale}, indices, takes_part, values, floats_of(mean));
    }
    return sent;
  }

 private:
  struct Round {
    int64_t iteration;
    float scale;
  };

  base::Random keyed(std::string_view purpose, int64_t iteration, int rank) const {
    const int device = peers_.ranks()[static_cast<size_t>(rank)];
    return random_.for_purpose(purpose).for_index(static_cast<uint64_t>(iteration)).for_index(static_cast<uint64_t>(device));
  }

  // By rank: the indices that each device sends; none if it takes no part. With common indices only this rank's entry is set.
  std::vector<Indices> indices_of(int64_t iteration, const std::vector<bool>& takes_part, int64_t kept) const {
    std::vector<Indices> indices(static_cast<size_t>(peers_.size()));
    if (up_.common || up_.density == 1) {
      const base::Random shared = random_.for_purpose("up, common").for_index(static_cast<uint64_t>(iteration));
      indices[static_cast<size_t>(peers_.rank())] = comm::random_indices(shared, elements_, kept);
    } else {
      for (int rank = 0; rank < peers_.size(); ++rank)
        if (takes_part[static_cast<size_t>(rank)])
          indices[static_cast<size_t>(rank)] = comm::random_indices(keyed("up", iteration, rank), elements_, kept);
    }
    return indices;
  }

  // The indices that owners send down: of those that any device sent up, the ones that compression keeps.
  Indices indices_down(int64_t iteration, const std::vector<Indices>& up) const {
    std::vector<bool> wanted(static_cast<size_t>(elements_), down_.kind == "none");
    if (down_.kind != "none")
      for (int owner = 0; owner < peers_.size(); ++owner) {
        const int64_t begin = ends_[static_cast<size_t>(owner)], count = ends_[static_cast<size_t>(owner) + 1] - begin;
        for (const int64_t index : comm::random_indices(keyed("down", iteration, owner), count, comm::kept_count(count, down_.density)))
          wanted[static_cast<size_t>(begin + index)] = true;
      }
    std::vector<bool> any(static_cast<size_t>(elements_), false);
    for (const Indices& indices : up)
      for (const int64_t index : indices) any[static_cast<size_t>(index)] = true;
    Indices down;
    for (int64_t i = 0; i < elements_; ++i)
      if (any[static_cast<size_t>(i)] && wanted[static_cast<size_t>(i)]) down.push_back(i);
    return down;
  }

  bool through_owners(const Round& round, const std::vector<Indices>& indices, const std::vector<bool>& takes_part,
                      std::vector<float>& values, std::span<float> mean) {
    const auto size = static_cast<size_t>(peers_.size()), me = static_cast<size_t>(peers_.rank());
    const int64_t begin = ends_[me], end = ends_[me + 1];
    Counts to(size, 0), from(size, 0);
    for (size_t rank = 0; rank < size; ++rank) {
      to[rank] = takes_part[me] ? length(within(indices[me], ends_[rank], ends_[rank + 1])) : 0;
      from[rank] = length(within(indices[rank], begin, end));
    }
    std::vector<float> came(static_cast<size_t>(total(from)));
    peers_.all_to_all(span_of(came), span_of(values), {comm::Purpose::gradient, "differences"}, from, to).wait_host();
    const bool finite_here = all_finite(came);
    size_t next = 0;
    for (size_t rank = 0; rank < size; ++rank) {  // in rank order, so that the sum is the same everywhere
      const auto count = static_cast<size_t>(from[rank]);
      comm::add_at(mean, within(indices[rank], begin, end), std::span(came).subspan(next, count), round.scale);
      next += count;
    }
    const Indices down = indices_down(round.iteration, indices);
    const std::span<const int64_t> mine = within(down, begin, end);
    std::vector<float> passed(mine.size()), all(down.size());
    comm::values_at(mean, mine, passed);
    const int64_t kept = down_.kind == "none" ? end - begin : comm::kept_count(end - begin, down_.density);
    const float factor = kept > 0 ? static_cast<float>(static_cast<double>(end - begin) / static_cast<double>(kept)) : 1.0f;
    for (float& value : passed) value = finite_here ? value * factor : std::numeric_limits<float>::quiet_NaN();
    for (size_t rank = 0; rank < size; ++rank) from[rank] = length(within(down, ends_[rank], ends_[rank + 1]));
    peers_.all_gather(span_of(all), span_of(passed), {comm::Purpose::parameter, "mean difference"}, from).wait_host();
    std::fill(mean.begin(), mean.end(), 0.0f);
    comm::set_at(mean, down, all);
    return all_finite(all);
  }

  Compression up_, down_;
  comm::Group& peers_;
  int64_t elements_;
  base::Random random_;
  Counts ends_;
};

class LargestExchange final : public MashaExchange {
 public:
  LargestExchange(const Compression& up, const Compression& down, comm::Group& peers, int64_t elements)
      : up_(up), down_(down), peers_(peers), elements_(elements), ends_(range_ends(elements, peers.size())) {
    const auto me = static_cast<size_t>(peers.rank());
    residual_ = at::zeros({elements});
    range_residual_ = at::zeros({ends_[me + 1] - ends_[me]});
  }

  Sent exchange(int64_t, const at::Tensor& message, const std::vector<bool>& takes_part, const at::Tensor& mean) override {
    const auto me = static_cast<size_t>(peers_.rank());
    const at::Tensor residual = residual_.clone(), range_residual = range_residual_.clone();  // kept only if all devices are finite
    Sent sent;
    std::vector<std::vector<std::byte>> packets(static_cast<size_t>(peers_.size()));
    bool finite = true;
    if (takes_part[me]) {
      const double before = (message + residual).norm().item<double>();
      finite = up(floats_of(message), floats_of(residual), packets);
      sent.error_ratio = before > 0 ? residual.norm().item<double>() / before : 0;
    }
    std::vector<std::byte> came;
    Counts lengths;
    if (!to_owners(packets, finite, came, lengths)) return {.finite = false};
    const std::span<float> range = floats_of(mean).subspan(static_cast<size_t>(ends_[me]), static_cast<size_t>(ends_[me + 1] - ends_[me]));
    std::fill(range.begin(), range.end(), 0.0f);
    const auto share = static_cast<float>(1.0 / static_cast<double>(std::count(takes_part.begin(), takes_part.end(), true)));
    size_t next = 0;
    for (const int64_t bytes : lengths) {
      if (bytes > 0) {
        const comm::Sparse sparse =
            comm::decode_sparse(std::span(came).subspan(next, static_cast<size_t>(bytes)), static_cast<int64_t>(range.size()));
        comm::add_at(range, sparse.indices, sparse.values, share);
      }
      next += static_cast<size_t>(bytes);
    }
    if (!down(range, floats_of(range_residual), mean)) return {.finite = false};
    residual_.copy_(residual);
    range_residual_.copy_(range_residual);
    return sent;
  }

  void rescale(double factor) override {
    residual_.mul_(factor);
    range_residual_.mul_(factor);
  }

  mesh::NamedTensors state() override {
    const int device = peers_.ranks()[static_cast<size_t>(peers_.rank())];
    return {{fmt::format("masha.device.{}.owed", device), residual_}, {fmt::format("masha.device.{}.range_owed", device), range_residual_}};
  }

 private:
  // Splits the largest elements of message plus residual into one packet per owner.
  bool up(std::span<const float> message, std::span<float> residual, std::vector<std::vector<std::byte>>& packets) const {
    std::vector<float> values;
    Indices indices;
    try {
      indices = comm::take_top_k(message, residual, comm::kept_count(elements_, up_.density), values);
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::diverged) throw;
      return false;
    }
    size_t next = 0;
    for (size_t owner = 0; owner < packets.size(); ++owner) {
      const std::span<const int64_t> part = within(indices, ends_[owner], ends_[owner + 1]);
      Indices local(part.begin(), part.end());
      for (int64_t& index : local) index -= ends_[owner];
      packets[owner] = comm::encode_sparse(local, std::span(values).subspan(next, local.size()));
      next += local.size();
    }
    return true;
  }

  // False: some device is not finite. All devices learn of it, since lengths travel first.
  bool to_owners(std::vector<std::vector<std::byte>>& packets, bool finite, std::vector<std::byte>& came, Counts& lengths) {
    std::vector<int32_t> lengths_to, lengths_from(packets.size());
    std::vector<std::byte> joined;
    Counts to;
    for (const std::vector<std::byte>& packet : packets) {
      lengths_to.push_back(finite ? static_cast<int32_t>(packet.size()) : kNotFinite);
      to.push_back(static_cast<int64_t>(packet.size()));
      joined.insert(joined.end(), packet.begin(), packet.end());
    }
    peers_.all_to_all(span_of(lengths_from), span_of(lengths_to), {comm::Purpose::control, "lengths of differences"}).wait_host();
    if (std::find(lengths_from.begin(), lengths_from.end(), kNotFinite) != lengths_from.end()) return false;
    lengths.assign(lengths_from.begin(), lengths_from.end());
    came.resize(static_cast<size_t>(total(lengths)));
    peers_.all_to_all(span_of(came), span_of(joined), {comm::Purpose::gradient, "differences"}, lengths, to).wait_host();
    return true;
  }

  // Gathers the largest elements of each owner's range plus residual into `mean` on all devices.
  bool down(std::span<const float> range, std::span<float> residual, const at::Tensor& mean) {
    std::vector<float> values;
    std::vector<std::byte> packet;
    std::vector<int32_t> length(1, 0), lengths(static_cast<size_t>(peers_.size()));
    try {
      const double density = down_.kind == "none" ? 1 : down_.density;
      const Indices indices = comm::take_top_k(range, residual, comm::kept_count(static_cast<int64_t>(range.size()), density), values);
      packet = comm::encode_sparse(indices, values);
      length[0] = static_cast<int32_t>(packet.size());
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::diverged) throw;
      length[0] = kNotFinite;
    }
    peers_.all_gather(span_of(lengths), span_of(length), {comm::Purpose::control, "lengths of the mean difference"}).wait_host();
    if (std::find(lengths.begin(), lengths.end(), kNotFinite) != lengths.end()) return false;
    const Counts counts(lengths.begin(), lengths.end());
    std::vector<std::byte> all(static_cast<size_t>(total(counts)));
    peers_.all_gather(span_of(all), span_of(packet), {comm::Purpose::parameter, "mean difference"}, counts).wait_host();
    mean.zero_();
    size_t next = 0;
    for (size_t owner = 0; owner < counts.size(); ++owner) {
      const auto elements = static_cast<size_t>(ends_[owner + 1] - ends_[owner]), bytes = static_cast<size_t>(counts[owner]);
      const comm::Sparse sparse = comm::decode_sparse(std::span(all).subspan(next, bytes), static_cast<int64_t>(elements));
      comm::set_at(floats_of(mean).subspan(static_cast<size_t>(ends_[owner]), elements), sparse.indices, sparse.values);
      next += bytes;
    }
    return true;
  }

  Compression up_, down_;
  comm::Group& peers_;
  int64_t elements_;
  Counts ends_;
  at::Tensor residual_, range_residual_;
};

}  // namespace

std::unique_ptr<MashaExchange> make_random_exchange(const Compression& up, const Compression& down, comm::Group& peers, int64_t elements,
                                                    const base::Random& random) {
  return std::make_unique<RandomExchange>(up, down, peers, elements, random);
}

std::unique_ptr<MashaExchange> make_largest_exchange(const Compression& up, const Compression& down, comm::Group& peers, int64_t elements) {
  return std::make_unique<LargestExchange>(up, down, peers, elements);
}

}  // namespace cairn::sync
