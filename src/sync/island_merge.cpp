#include "sync/island_merge.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "comm/codec.h"
#include "comm/coded_all_reduce.h"
#include "kernels/aten.h"

namespace cairn::sync {
namespace {

// Before the codes: weight and note.
constexpr size_t kHeadBytes = 2 * sizeof(double);

// What results travel as: exactly where the values do.
std::unique_ptr<const comm::Codec> result_codec(const comm::Codec& values) {
  return comm::make_codec(values.name() == "fp32" ? "fp32" : "bf16");
}

at::Tensor decoded(const comm::Codec& codec, const std::byte* code, int64_t count) {
  at::Tensor values = at::empty({count}, at::kFloat);
  codec.decode(code, count, values.mutable_data_ptr<float>());
  return values;
}

}  // namespace

IslandMerge::IslandMerge(const Parts& parts, const at::Tensor& values)
    : parts_(parts), results_(result_codec(parts.codec)), elements_(values.numel()) {
  CAIRN_CHECK(parts.part >= 0 && parts.part < kParts && values.is_contiguous() && values.dtype() == at::kFloat && values.is_cpu(),
              "part {} of {}", parts.part, values.toString());
  const IslandSet& members = parts.council.members();
  own_.resize(static_cast<size_t>(parts.codec.encoded_bytes(elements_)));
  parts.codec.encode(values.const_data_ptr<float>(), elements_, own_.data());
  if (parts.council.count() > kGatherMost) {
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i]) owners_.push_back(static_cast<int>(i));
    first_.push_back(0);
    for (const int64_t count : comm::block_counts(elements_, static_cast<int>(owners_.size()), parts.codec.block()))
      first_.push_back(first_.back() + count);
  }
  round_.emplace(parts.council.begin(parts.step, parts.part, parts.wants_to_stop, [&](int island) {
    int64_t begin = 0, end = elements_;
    if (!owners_.empty()) {
      const auto owner = static_cast<size_t>(std::find(owners_.begin(), owners_.end(), island) - owners_.begin());
      begin = first_[owner], end = first_[owner + 1];
    }
    const int64_t skipped = parts_.codec.encoded_bytes(begin), bytes = parts_.codec.encoded_bytes(end) - skipped;
    std::vector<std::byte> body(kHeadBytes + static_cast<size_t>(bytes));
    std::memcpy(body.data(), &parts_.weight, sizeof(double));
    std::memcpy(body.data() + sizeof(double), &parts_.note, sizeof(double));
    if (bytes > 0) std::memcpy(body.data() + kHeadBytes, own_.data() + skipped, static_cast<size_t>(bytes));
    bytes_sent_ += bytes;
    return body;
  }));
}

at::Tensor IslandMerge::as_sent() const { return decoded(parts_.codec, own_.data(), elements_); }

// Of elements first .. first + count - 1, from the islands that count.
at::Tensor IslandMerge::merged(int32_t part, int64_t first, int64_t count, const IslandSet& counted) const {
  const int64_t skipped = parts_.codec.encoded_bytes(first), bytes = parts_.codec.encoded_bytes(first + count) - skipped;
  std::vector<Contribution> contributions;
  for (size_t island = 0; island < counted.size(); ++island) {
    if (!counted[island]) continue;
    const std::vector<std::byte>* body = parts_.council.parcel(static_cast<int>(island), parts_.step, part);
    if (!body) {  // its own
      contributions.push_back({decoded(parts_.codec, own_.data() + skipped, count), parts_.weight});
      continue;
    }
    if (static_cast<int64_t>(body->size()) != static_cast<int64_t>(kHeadBytes) + bytes) continue;  // of another form: alike for all
    double weight = 0;
    std::memcpy(&weight, body->data(), sizeof(double));
    contributions.push_back({decoded(parts_.codec, body->data() + kHeadBytes, count), weight});
  }
  return merge(parts_.rule, contributions);
}

void IslandMerge::start_second() {
  const int me = parts_.council.me();
  const auto owner = static_cast<size_t>(std::find(owners_.begin(), owners_.end(), me) - owners_.begin());
  const int64_t count = first_[owner + 1] - first_[owner];
  at::Tensor values = merged(parts_.part, first_[owner], count, round_->verdict().counted);
  std::vector<std::byte> code;
  if (values.defined()) {
    code.resize(static_cast<size_t>(results_->encoded_bytes(count)));
    results_->encode(values.const_data_ptr<float>(), count, code.data());
    mine_ = decoded(*results_, code.data(), count);
  }
  second_.emplace(parts_.council.begin(parts_.step, parts_.part + kParts, parts_.wants_to_stop, [&](int) {
    bytes_sent_ += static_cast<int64_t>(code.size());
    return code;
  }));
}

bool IslandMerge::progress() {
  if (!round_->progress()) return false;
  if (owners_.empty()) return true;
  if (!second_) start_second();
  return second_->progress();
}

at::Tensor IslandMerge::wait() {
  const Verdict& first = round_->wait();
  stop_ = first.stop;
  counted_ = static_cast<int>(std::count(first.counted.begin(), first.counted.end(), true));
  note_ = 0;
  for (size_t island = 0; island < first.counted.size(); ++island) {
    if (!first.counted[island]) continue;
    double note = parts_.note;
    if (const std::vector<std::byte>* body = parts_.council.parcel(static_cast<int>(island), parts_.step, parts_.part);
        body && body->size() >= kHeadBytes)
      std::memcpy(&note, body->data() + sizeof(double), sizeof(double));
    note_ += note / counted_;
  }
  if (owners_.empty()) return merged(parts_.part, 0, elements_, first.counted);
  if (!second_) start_second();
  const Verdict& then = second_->wait();
  stop_ = stop_ || then.stop;
  // Every part is needed: where an owner was lost with its own, nothing comes of the round.
  at::Tensor whole = at::empty({elements_}, at::kFloat);
  for (size_t i = 0; i < owners_.size(); ++i) {
    const int64_t count = first_[i + 1] - first_[i];
    if (count == 0) continue;
    if (!then.counted[static_cast<size_t>(owners_[i])]) return {};
    const at::Tensor place = whole.narrow(0, first_[i], count);
    if (owners_[i] == parts_.council.me()) {
      if (!mine_.defined()) return {};
      place.copy_(mine_);
      continue;
    }
    const std::vector<std::byte>* body = parts_.council.parcel(owners_[i], parts_.step, parts_.part + kParts);
    if (!body || static_cast<int64_t>(body->size()) != results_->encoded_bytes(count)) return {};
    results_->decode(body->data(), count, place.mutable_data_ptr<float>());
  }
  return whole;
}

}  // namespace cairn::sync
