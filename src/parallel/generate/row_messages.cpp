#include "parallel/generate/row_messages.h"

#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "kernels/aten.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kPartBytesMax = int64_t{1} << 40;

at::Tensor count_of(const at::Tensor& part) {
  const at::Tensor count = at::empty({1}, at::kLong);
  count.mutable_data_ptr<int64_t>()[0] = part.defined() ? part.numel() : 0;
  return count;
}

}  // namespace

RowMessages::RowMessages(comm::Group& group, std::vector<at::Tensor> parts, comm::Purpose purpose, std::string what)
    : group_(&group), purpose_(purpose), what_(std::move(what)), parts_(std::move(parts)) {
  const int n = group.size();
  CAIRN_CHECK(parts_.size() == static_cast<size_t>(n), "{}: {} parts for {} ranks", what_, parts_.size(), n);
  for (int turn = 1; turn < n; ++turn) {
    const int peer = (group.rank() + turn) % n;
    const at::Tensor& part = parts_[static_cast<size_t>(peer)];
    sent_.push_back(group.send(count_of(part), peer, {comm::Purpose::control, what_}));
    if (part.defined() && part.numel() > 0) sent_.push_back(group.send(part, peer, {purpose_, what_}));
  }
  group.progress();
}

std::vector<at::Tensor> RowMessages::receive() {
  const int n = group_->size(), me = group_->rank();
  std::vector<at::Tensor> counts(static_cast<size_t>(n)), arrived(static_cast<size_t>(n));
  std::vector<comm::Work> coming(static_cast<size_t>(n));
  for (int turn = 1; turn < n; ++turn) {
    const auto peer = static_cast<size_t>((me + turn) % n);
    counts[peer] = at::empty({1}, at::kLong);
    coming[peer] = group_->recv(counts[peer], static_cast<int>(peer), {comm::Purpose::control, what_});
  }
  for (int turn = 1; turn < n; ++turn) {
    const auto peer = static_cast<size_t>((me + turn) % n);
    coming[peer].wait_host();
    const int64_t bytes = counts[peer].const_data_ptr<int64_t>()[0];
    if (bytes < 0 || bytes > kPartBytesMax)
      throw Error(Error::Kind::broken_invariant, fmt::format("{}: rank {} announces {} bytes. No row was read.", what_, peer, bytes));
    arrived[peer] = at::empty({bytes}, at::kByte);
    if (bytes > 0) coming[peer] = group_->recv(arrived[peer], static_cast<int>(peer), {purpose_, what_});
  }
  comm::Work::all(std::move(coming)).wait_host();
  const at::Tensor& own = parts_[static_cast<size_t>(me)];
  arrived[static_cast<size_t>(me)] = own.defined() ? own : at::empty({0}, at::kByte);
  comm::Work::all(std::move(sent_)).wait_host();
  sent_.clear();
  return arrived;
}

}  // namespace cairn::parallel
