#include "sync/island_merge.h"

#include <algorithm>
#include <cmath>
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

int IslandMerge::gather_most(const comm::Codec& codec) { return codec.name() == "fp32" ? 2 : 8; }

IslandMerge::IslandMerge(const Parts& parts, const at::Tensor& values)
    : parts_(parts), results_(result_codec(parts.codec)), elements_(values.numel()), begun_(parts.council.post().now()) {
  CAIRN_CHECK(parts.part >= 0 && values.is_contiguous() && values.dtype() == at::kFloat && values.is_cpu(), "part {} of {}", parts.part,
              values.toString());
  const IslandSet& members = parts.council.members();
  own_.resize(static_cast<size_t>(parts.codec.encoded_bytes(elements_)));
  parts.codec.encode(values.const_data_ptr<float>(), elements_, own_.data());
  if (parts.council.count() > gather_most(parts.codec)) {
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i]) owners_.push_back(static_cast<int>(i));
    first_.push_back(0);
    for (const int64_t count : comm::block_counts(elements_, static_cast<int>(owners_.size()), parts.codec.block()))
      first_.push_back(first_.back() + count);
  }
  if (!owners_.empty()) {
    hand_out();
    return;
  }
  std::vector<std::byte> all = body(own_.data(), static_cast<int64_t>(own_.size()));
  round_.emplace(parts.council.begin(parts.step, parts.part, parts.wants_to_stop, [&](int) {
    bytes_sent_ += static_cast<int64_t>(own_.size());
    return all;
  }));
}

// Weight and note, then a code.
std::vector<std::byte> IslandMerge::body(const std::byte* code, int64_t bytes) const {
  std::vector<std::byte> body(kHeadBytes + static_cast<size_t>(bytes));
  std::memcpy(body.data(), &parts_.weight, sizeof(double));
  std::memcpy(body.data() + sizeof(double), &parts_.note, sizeof(double));
  if (bytes > 0) std::memcpy(body.data() + kHeadBytes, code, static_cast<size_t>(bytes));
  return body;
}

// To each owner this island's code of its part. Nobody need agree on who was heard of here: what the owner makes of it is what counts.
void IslandMerge::hand_out() {
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] == parts_.council.me()) continue;
    const int64_t skipped = parts_.codec.encoded_bytes(first_[i]), bytes = parts_.codec.encoded_bytes(first_[i + 1]) - skipped;
    parts_.council.post().send(owners_[i], share_of_step(), body(own_.data() + skipped, bytes), comm::Purpose::gradient);
    bytes_sent_ += bytes;
  }
}

Subject IslandMerge::share_of_step() const { return {Subject::Kind::share, parts_.step, parts_.part}; }

// Whether all that live have sent their share, or had time enough.
bool IslandMerge::shares_are_here() const {
  const IslandPost& post = parts_.council.post();
  if (post.now() >= begun_ + parts_.council.timeout()) return true;
  for (const int island : owners_)
    if (island != post.me() && !post.lost(island) && !post.find(island, share_of_step())) return false;
  return true;
}

at::Tensor IslandMerge::as_sent() const { return decoded(parts_.codec, own_.data(), elements_); }

// Of elements first .. first + count - 1, from what these islands sent under the subject.
at::Tensor IslandMerge::merged(const Subject& subject, int64_t first, int64_t count, const IslandSet& counted) const {
  const int64_t skipped = parts_.codec.encoded_bytes(first), bytes = parts_.codec.encoded_bytes(first + count) - skipped;
  std::vector<Contribution> contributions;
  for (size_t island = 0; island < counted.size(); ++island) {
    if (!counted[island]) continue;
    if (static_cast<int>(island) == parts_.council.me()) {
      contributions.push_back({decoded(parts_.codec, own_.data() + skipped, count), parts_.weight});
      continue;
    }
    const std::vector<std::byte>* body = parts_.council.post().find(static_cast<int>(island), subject);
    if (!body || static_cast<int64_t>(body->size()) != static_cast<int64_t>(kHeadBytes) + bytes)
      continue;  // of another form: alike for all
    double weight = 0;
    std::memcpy(&weight, body->data(), sizeof(double));
    contributions.push_back({decoded(parts_.codec, body->data() + kHeadBytes, count), weight});
  }
  return merge(parts_.rule, contributions);
}

void IslandMerge::give_result() {
  const auto owner = static_cast<size_t>(std::find(owners_.begin(), owners_.end(), parts_.council.me()) - owners_.begin());
  const int64_t count = first_[owner + 1] - first_[owner];
  IslandSet heard(static_cast<size_t>(parts_.council.post().size()));
  for (const int island : owners_)
    heard[static_cast<size_t>(island)] = island == parts_.council.me() || parts_.council.post().find(island, share_of_step());
  counted_ = static_cast<int>(std::count(heard.begin(), heard.end(), true));
  const at::Tensor values = merged(share_of_step(), first_[owner], count, heard);
  std::vector<std::byte> code;
  if (values.defined()) {
    code.resize(static_cast<size_t>(results_->encoded_bytes(count)));
    results_->encode(values.const_data_ptr<float>(), count, code.data());
    mine_ = decoded(*results_, code.data(), count);
  }
  const std::vector<std::byte> whole = body(code.data(), static_cast<int64_t>(code.size()));
  round_.emplace(parts_.council.begin(parts_.step, parts_.part, parts_.wants_to_stop, [&](int) {
    bytes_sent_ += static_cast<int64_t>(code.size());
    return whole;
  }));
}

bool IslandMerge::progress() {
  if (!round_) {
    parts_.council.post().pump();
    if (!shares_are_here()) return false;
    give_result();
  }
  return round_->progress();
}

at::Tensor IslandMerge::wait() {
  if (!round_) {
    parts_.council.post().wait([&] { return shares_are_here(); }, begun_ + parts_.council.timeout());
    give_result();
  }
  const Verdict& verdict = round_->wait();
  parts_.council.conclude(*round_);
  stop_ = verdict.stop;
  const auto counted = static_cast<int>(std::count(verdict.counted.begin(), verdict.counted.end(), true));
  note_ = 0;
  for (size_t island = 0; island < verdict.counted.size(); ++island) {
    if (!verdict.counted[island]) continue;
    double note = parts_.note;
    if (const std::vector<std::byte>* body = parts_.council.parcel(static_cast<int>(island), parts_.step, parts_.part);
        body && body->size() >= kHeadBytes)
      std::memcpy(&note, body->data() + sizeof(double), sizeof(double));
    note_ += note / counted;
    if (note > 0 && std::isfinite(note)) least_note_ = least_note_ > 0 ? std::min(least_note_, note) : note;
  }
  if (!owners_.empty()) return put_together(verdict.counted);
  counted_ = counted;
  return merged({Subject::Kind::parcel, parts_.step, parts_.part}, 0, elements_, verdict.counted);
}

// Every part is needed: where an owner was lost with its own, nothing comes of the round.
at::Tensor IslandMerge::put_together(const IslandSet& counted) const {
  at::Tensor whole = at::empty({elements_}, at::kFloat);
  for (size_t i = 0; i < owners_.size(); ++i) {
    const int64_t count = first_[i + 1] - first_[i];
    if (count == 0) continue;
    if (!counted[static_cast<size_t>(owners_[i])]) return {};
    const at::Tensor place = whole.narrow(0, first_[i], count);
    if (owners_[i] == parts_.council.me()) {
      if (!mine_.defined()) return {};
      place.copy_(mine_);
      continue;
    }
    const std::vector<std::byte>* body = parts_.council.parcel(owners_[i], parts_.step, parts_.part);
    if (!body || static_cast<int64_t>(body->size()) != static_cast<int64_t>(kHeadBytes) + results_->encoded_bytes(count)) return {};
    results_->decode(body->data() + kHeadBytes, count, place.mutable_data_ptr<float>());
  }
  return whole;
}

}  // namespace cairn::sync
