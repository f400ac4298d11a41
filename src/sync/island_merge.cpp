#include "sync/island_merge.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "comm/coded_all_reduce.h"
#include "kernels/aten.h"
#include "sync/wire_tensor.h"

namespace cairn::sync {
namespace {

// Before the codes: weight and note.
constexpr size_t kHeadBytes = 2 * sizeof(double);

}  // namespace

IslandMerge::IslandMerge(const Parts& parts, const at::Tensor& values)
    : parts_(parts), device_(values.device()), elements_(values.numel()), begun_(parts.council.post().now()), first_{0} {
  CAIRN_CHECK(parts.part >= 0 && values.is_contiguous() && values.dtype() == at::kFloat, "part {} of {}", parts.part, values.toString());
  const IslandSet& members = parts.council.members();
  if (parts.council.count() > parts.wire.gather_most()) {
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i]) owners_.push_back(static_cast<int>(i));
    for (const int64_t count : comm::block_counts(elements_, static_cast<int>(owners_.size()), parts.wire.block()))
      first_.push_back(first_.back() + count);
  } else {
    first_.push_back(elements_);
  }
  for (size_t piece = 0; piece + 1 < first_.size(); ++piece)
    own_.push_back(encode(parts.wire, run(piece), values.narrow(0, first_[piece], count(piece))));
  if (!owners_.empty()) {
    hand_out();
    return;
  }
  const std::vector<std::byte> all = body(own_[0]);
  round_.emplace(parts.council.begin(parts.step, parts.part, parts.wants_to_stop, [&](int) {
    bytes_sent_ += static_cast<int64_t>(own_[0].size());
    return all;
  }));
}

// Weight and note, then a code.
std::vector<std::byte> IslandMerge::body(std::span<const std::byte> code) const {
  std::vector<std::byte> body(kHeadBytes + code.size());
  std::memcpy(body.data(), &parts_.weight, sizeof(double));
  std::memcpy(body.data() + sizeof(double), &parts_.note, sizeof(double));
  if (!code.empty()) std::memcpy(body.data() + kHeadBytes, code.data(), code.size());
  return body;
}

// To each owner this island's code of its piece. Nobody need agree on who was heard of here: what the owner makes of it is what counts.
void IslandMerge::hand_out() {
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] == parts_.council.me()) continue;
    parts_.council.post().send(owners_[i], share_of_step(), body(own_[i]), comm::Purpose::gradient);
    bytes_sent_ += static_cast<int64_t>(own_[i].size());
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

at::Tensor IslandMerge::as_sent() const {
  at::Tensor all = at::empty({elements_}, at::TensorOptions().dtype(at::kFloat).device(device_));
  for (size_t piece = 0; piece < own_.size(); ++piece) {
    const at::Tensor values = decode(parts_.wire, run(piece), own_[piece], count(piece), device_);
    CAIRN_CHECK(values.defined(), "piece {}", piece);
    all.narrow(0, first_[piece], count(piece)).copy_(values);
  }
  return all;
}

// Of one piece, from what these islands sent under the subject.
at::Tensor IslandMerge::merged(const Subject& subject, size_t piece, const IslandSet& counted) const {
  std::vector<Contribution> contributions;
  for (size_t island = 0; island < counted.size(); ++island) {
    if (!counted[island]) continue;
    std::span<const std::byte> code = own_[piece];
    double weight = parts_.weight;
    if (static_cast<int>(island) != parts_.council.me()) {
      const std::vector<std::byte>* body = parts_.council.post().find(static_cast<int>(island), subject);
      if (!body || body->size() < kHeadBytes) continue;
      std::memcpy(&weight, body->data(), sizeof(double));
      code = std::span(*body).subspan(kHeadBytes);
    }
    // Sums of two are the same bits on every kind of device; norms and orders are left to the host.
    const at::Tensor values =
        decode(parts_.wire, run(piece), code, count(piece), parts_.rule.kind == "mean" ? device_ : at::Device(at::kCPU));
    if (values.defined()) contributions.push_back({values, weight});  // of another form: alike for all
  }
  return merge(parts_.rule, contributions);
}

void IslandMerge::give_result() {
  const auto owner = static_cast<size_t>(std::find(owners_.begin(), owners_.end(), parts_.council.me()) - owners_.begin());
  IslandSet heard(static_cast<size_t>(parts_.council.post().size()));
  for (const int island : owners_)
    heard[static_cast<size_t>(island)] = island == parts_.council.me() || parts_.council.post().find(island, share_of_step());
  counted_ = static_cast<int>(std::count(heard.begin(), heard.end(), true));
  const at::Tensor values = merged(share_of_step(), owner, heard);
  std::vector<std::byte> code;
  if (values.defined()) {
    code = encode(parts_.wire.results(), run(owner), values);
    mine_ = decode(parts_.wire.results(), run(owner), code, count(owner), device_);
  }
  const std::vector<std::byte> whole = body(code);
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
  return merged({Subject::Kind::parcel, parts_.step, parts_.part}, 0, verdict.counted);
}

// Every part is needed: where an owner was lost with its own, nothing comes of the round.
at::Tensor IslandMerge::put_together(const IslandSet& counted) const {
  at::Tensor whole = at::empty({elements_}, at::TensorOptions().dtype(at::kFloat).device(device_));
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (count(i) == 0) continue;
    if (!counted[static_cast<size_t>(owners_[i])]) return {};
    const at::Tensor place = whole.narrow(0, first_[i], count(i));
    if (owners_[i] == parts_.council.me()) {
      if (!mine_.defined()) return {};
      place.copy_(mine_);
      continue;
    }
    const std::vector<std::byte>* body = parts_.council.parcel(owners_[i], parts_.step, parts_.part);
    if (!body || body->size() < kHeadBytes) return {};
    const at::Tensor values = decode(parts_.wire.results(), run(i), std::span(*body).subspan(kHeadBytes), count(i), device_);
    if (!values.defined()) return {};
    place.copy_(values);
  }
  return whole;
}

}  // namespace cairn::sync
