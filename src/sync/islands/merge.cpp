// An all-reduce over islands with compressed messages. N islands, E elements; `all_gather_limit` of the compressor chooses between:
//
//   few islands    each sends its compressed tensor to all others; everyone decodes and merges all of them (all-gather, then merge)
//   many islands   the tensor is cut into N chunks, one per owner; each island sends every owner its version of that chunk; the owner
//   merges
//                  and sends the result to all, by the compressor for results (reduce-scatter, then all-gather)
//
// A quorum round (quorum.h) decides which islands' updates count: the compressed tensors in the first case, the owners' results in the
// second. An owner uses the decoded result that the others see too, so that all islands compute with identical bits.
#include "sync/islands/merge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include <ATen/ThreadLocalState.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "base/check.h"
#include "base/memory_scope.h"
#include "comm/collectives/coded_all_reduce.h"
#include "kernels/aten.h"
#include "kernels/streams.h"

namespace cairn::sync {
namespace {

// A header before the compressed values: weight and note.
constexpr size_t kHeadBytes = 2 * sizeof(double);

// Runs `work` now. Its exception is thrown by the future.
template <typename Result>
std::future<Result> run_now(const std::function<Result()>& work) {
  std::packaged_task<Result()> task(work);
  task();
  return task.get_future();
}

// Runs `work` on another thread; on a GPU on a side stream, after everything that this thread has enqueued. When the future is ready the
// results may be read on any stream.
template <typename Result>
std::future<Result> in_background(const at::Device& device, std::function<Result()> work) {
  const auto before = device.is_cuda() ? std::make_shared<c10::Event>(device.type()) : nullptr;
  if (before) before->record(kernels::current_stream(device));
  return std::async(std::launch::async, [device, before, work = std::move(work), state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard as_there(state);
    const base::MemoryScope purpose("islands");
    if (!before) return work();
    const c10::Stream beside = kernels::side_stream(device, kernels::SideStream::islands);
    const c10::StreamGuard on(beside);
    before->block(beside);
    std::future<Result> made = run_now(work);
    beside.synchronize();  // also after a failure: the stream may still read tensors that are freed next
    return made.get();
  });
}

template <typename Result>
bool is_ready(const std::future<Result>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

IslandMerge::IslandMerge(const Parts& parts, const at::Tensor& values)
    : parts_(parts), device_(values.device()), elements_(values.numel()), begun_(parts.quorum.messenger().now()), first_{0} {
  CAIRN_CHECK(parts.part >= 0 && values.is_contiguous() && values.dtype() == at::kFloat, "part {} of {}", parts.part, values.toString());
  const IslandSet& members = parts.quorum.members();
  if (parts.quorum.count() > parts.compressor.all_gather_limit()) {
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i]) owners_.push_back(static_cast<int>(i));
    for (const int64_t count : comm::block_counts(elements_, static_cast<int>(owners_.size()), parts.compressor.block()))
      first_.push_back(first_.back() + count);
  } else {
    first_.push_back(elements_);
    round_.emplace(parts.quorum.begin(parts.step, parts.part, parts.wants_to_stop));  // now: the members are those of this step
  }
  // The recipients are those of this step too.
  outgoing_.resize(members.size());
  for (size_t chunk = 0; chunk + 1 < first_.size(); ++chunk)
    own_.push_back(parts.quorum.messenger().take_buffer(kHeadBytes + static_cast<size_t>(parts.compressor.encoded_bytes(count(chunk)))));
  packing_ = start<void>([this, values] { pack(values); });
  if (!parts.in_background) send_packed(/*waits=*/true);
}

IslandMerge::~IslandMerge() {
  const auto wait_for = [](const auto& work) {
    if (work.valid()) work.wait();
  };
  wait_for(packing_), wait_for(merging_), wait_for(result_);
  parts_.quorum.messenger().recycle(std::move(own_));
}

template <typename Made>
std::future<Made> IslandMerge::start(std::function<Made()> work) const {
  return parts_.in_background ? in_background(device_, std::move(work)) : run_now(work);
}

// Compresses this island's values and prepares its messages.
void IslandMerge::pack(const at::Tensor& values) {
  for (size_t chunk = 0; chunk + 1 < first_.size(); ++chunk)
    own_[chunk] = with_head(
        encode(parts_.compressor, slice(chunk), values.narrow(0, first_[chunk], count(chunk)), kHeadBytes, std::exchange(own_[chunk], {})));
  const IslandMessenger& messenger = parts_.quorum.messenger();
  if (round_) {
    for (int island = 0; island < messenger.size(); ++island)
      if (island != messenger.me() && is_member(island)) outgoing_[static_cast<size_t>(island)] = messenger.split(round_->tag(), own_[0]);
    return;
  }
  // Each owner gets this island's version of its chunk. No vote is needed on which versions arrived: the owner's result is what counts.
  for (size_t i = 0; i < owners_.size(); ++i)
    if (owners_[i] != messenger.me()) outgoing_[static_cast<size_t>(owners_[i])] = messenger.split(chunk_tag(), own_[i]);
}

// Sends what is packed. False: it is not ready and `waits` is false.
bool IslandMerge::send_packed(bool waits) {
  if (!packing_.valid()) return true;
  if (!waits && !is_ready(packing_)) return false;
  packing_.get();
  for (size_t island = 0; island < outgoing_.size(); ++island) {
    if (outgoing_[island].empty()) continue;
    const auto chunk =
        round_ ? 0 : static_cast<size_t>(std::find(owners_.begin(), owners_.end(), static_cast<int>(island)) - owners_.begin());
    bytes_sent_ += static_cast<int64_t>(own_code(chunk).size());
    parts_.quorum.messenger().send(static_cast<int>(island), std::move(outgoing_[island]), comm::Purpose::gradient);
  }
  outgoing_.clear();
  return true;
}

// Writes weight and note into the header.
std::vector<std::byte> IslandMerge::with_head(std::vector<std::byte> body) const {
  std::memcpy(body.data(), &parts_.weight, sizeof(double));
  std::memcpy(body.data() + sizeof(double), &parts_.note, sizeof(double));
  return body;
}

std::span<const std::byte> IslandMerge::own_code(size_t chunk) const { return std::span(own_[chunk]).subspan(kHeadBytes); }

MessageTag IslandMerge::chunk_tag() const { return {MessageTag::Kind::chunk, parts_.step, parts_.part}; }

// Whether all live islands have sent their version of this island's chunk, or the time limit is over.
bool IslandMerge::all_chunks_arrived() const {
  const IslandMessenger& messenger = parts_.quorum.messenger();
  if (messenger.now() >= begun_ + parts_.quorum.timeout()) return true;
  for (const int island : owners_)
    if (island != messenger.me() && !messenger.lost(island) && !messenger.find(island, chunk_tag())) return false;
  return true;
}

at::Tensor IslandMerge::as_sent() {
  send_packed(/*waits=*/true);
  at::Tensor all = at::empty({elements_}, at::TensorOptions().dtype(at::kFloat).device(device_));
  for (size_t chunk = 0; chunk < own_.size(); ++chunk) {
    const at::Tensor values = decode(parts_.compressor, slice(chunk), own_code(chunk), count(chunk), device_);
    CAIRN_CHECK(values.defined(), "chunk {}", chunk);
    all.narrow(0, first_[chunk], count(chunk)).copy_(values);
  }
  return all;
}

// The versions of a chunk that these islands sent under the tag.
std::vector<IslandMerge::Code> IslandMerge::codes_of(const MessageTag& tag, size_t chunk, const IslandSet& included) const {
  std::vector<Code> codes;
  for (size_t island = 0; island < included.size(); ++island) {
    if (!included[island]) continue;
    if (static_cast<int>(island) == parts_.quorum.me()) {
      codes.push_back({own_code(chunk), parts_.weight});
      continue;
    }
    const std::vector<std::byte>* body = parts_.quorum.messenger().find(static_cast<int>(island), tag);
    if (!body || body->size() < kHeadBytes) continue;
    Code& one = codes.emplace_back(Code{std::span(*body).subspan(kHeadBytes)});
    std::memcpy(&one.weight, body->data(), sizeof(double));
  }
  return codes;
}

at::Tensor IslandMerge::merged(const std::vector<Code>& codes, size_t chunk) const {
  // Sums of two numbers are bitwise identical on every kind of device. Norms and sorting are left to the host.
  const at::Device where = parts_.rule.kind == MergeKind::mean ? device_ : at::Device(at::kCPU);
  std::vector<Contribution> contributions;
  for (const Code& one : codes) {
    const at::Tensor values = decode(parts_.compressor, slice(chunk), one.bytes, count(chunk), where);
    if (values.defined()) contributions.push_back({values, one.weight});  // malformed: all islands drop it
  }
  return merge(parts_.rule, contributions);
}

// Merges this island's chunk from the versions that have arrived. They stay in the messenger until the round is closed, so the background
// thread may read them.
void IslandMerge::begin_merging() {
  const auto owner = static_cast<size_t>(std::find(owners_.begin(), owners_.end(), parts_.quorum.me()) - owners_.begin());
  const IslandMessenger& messenger = parts_.quorum.messenger();
  IslandSet heard(static_cast<size_t>(messenger.size()));
  for (const int island : owners_) heard[static_cast<size_t>(island)] = island == parts_.quorum.me() || messenger.find(island, chunk_tag());
  included_ = static_cast<int>(std::count(heard.begin(), heard.end(), true));
  merging_ = start<Result>([this, owner, codes = codes_of(chunk_tag(), owner, heard)] {
    const at::Tensor values = merged(codes, owner);
    Result result{.message = std::vector<std::byte>(kHeadBytes)};
    if (values.defined()) result.message = encode(parts_.compressor.result_compressor(), slice(owner), values, kHeadBytes);
    result.message = with_head(std::move(result.message));
    if (values.defined())
      result.mine =
          decode(parts_.compressor.result_compressor(), slice(owner), std::span(result.message).subspan(kHeadBytes), count(owner), device_);
    return result;
  });
}

void IslandMerge::send_result(Result result) {
  const IslandMessenger& messenger = parts_.quorum.messenger();
  mine_ = std::move(result.mine);
  keep_for_stream(mine_);
  round_.emplace(parts_.quorum.begin(parts_.step, parts_.part, parts_.wants_to_stop));
  for (int island = 0; island < messenger.size(); ++island) {
    if (island == messenger.me() || !is_member(island)) continue;
    bytes_sent_ += static_cast<int64_t>(result.message.size() - kHeadBytes);
    parts_.quorum.messenger().send(island, round_->tag(), result.message, comm::Purpose::gradient);
  }
}

// Tensors that were made on the side stream are used on this one.
void IslandMerge::keep_for_stream(const at::Tensor& made) const {
  if (parts_.in_background && made.defined() && made.is_cuda()) made.record_stream(kernels::current_stream(device_));
}

bool IslandMerge::progress() {
  IslandMessenger& messenger = parts_.quorum.messenger();
  if (!send_packed(/*waits=*/false)) {
    messenger.pump();
    return false;
  }
  if (!round_) {
    messenger.pump();
    if (!merging_.valid()) {
      if (!all_chunks_arrived()) return false;
      begin_merging();
    }
    if (!is_ready(merging_)) return false;
    send_result(merging_.get());
  }
  if (!round_->progress()) return false;
  if (!parts_.in_background) return true;  // `wait` computes the result
  if (!result_.valid()) begin_result();
  return is_ready(result_);
}

// Starts to compute the result, once there is a decision.
void IslandMerge::begin_result() {
  const IslandSet& included = round_->decision().included;
  if (owners_.empty()) {
    result_ = start<at::Tensor>([this, codes = codes_of(round_->tag(), 0, included)] { return merged(codes, 0); });
    return;
  }
  // The results of all owners are needed: if an owner was lost with its chunk, the round fails.
  std::vector<std::span<const std::byte>> results;
  for (size_t i = 0; i < owners_.size(); ++i) {
    const bool own = owners_[i] == parts_.quorum.me();
    const std::vector<std::byte>* body = own ? nullptr : parts_.quorum.update_from(owners_[i], parts_.step, parts_.part);
    const bool lacks = !included[static_cast<size_t>(owners_[i])] || (own ? !mine_.defined() : !body || body->size() < kHeadBytes);
    if (count(i) > 0 && lacks) {
      result_ = run_now<at::Tensor>([] { return at::Tensor(); });
      return;
    }
    results.push_back(body ? std::span(*body).subspan(std::min(body->size(), kHeadBytes)) : std::span<const std::byte>());
  }
  result_ = start<at::Tensor>([this, results = std::move(results)] { return put_together(results); });
}

at::Tensor IslandMerge::wait() {
  send_packed(/*waits=*/true);
  if (!round_) {
    if (!merging_.valid()) {
      parts_.quorum.messenger().wait([&] { return all_chunks_arrived(); }, begun_ + parts_.quorum.timeout());
      begin_merging();
    }
    send_result(merging_.get());
  }
  const RoundDecision& decision = round_->wait();
  parts_.quorum.conclude(*round_);
  stop_ = decision.stop;
  const auto included = static_cast<int>(std::count(decision.included.begin(), decision.included.end(), true));
  note_ = 0;
  for (size_t island = 0; island < decision.included.size(); ++island) {
    if (!decision.included[island]) continue;
    double note = parts_.note;
    if (const std::vector<std::byte>* body = parts_.quorum.update_from(static_cast<int>(island), parts_.step, parts_.part);
        body && body->size() >= kHeadBytes)
      std::memcpy(&note, body->data() + sizeof(double), sizeof(double));
    note_ += note / included;
    if (note > 0 && std::isfinite(note)) least_note_ = least_note_ > 0 ? std::min(least_note_, note) : note;
  }
  if (owners_.empty()) included_ = included;
  if (!result_.valid()) begin_result();
  at::Tensor result = result_.get();
  keep_for_stream(result);
  return result;
}

at::Tensor IslandMerge::put_together(const std::vector<std::span<const std::byte>>& results) const {
  at::Tensor whole = at::empty({elements_}, at::TensorOptions().dtype(at::kFloat).device(device_));
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (count(i) == 0) continue;
    const bool own = owners_[i] == parts_.quorum.me();
    const at::Tensor values = own ? mine_ : decode(parts_.compressor.result_compressor(), slice(i), results[i], count(i), device_);
    if (!values.defined()) return {};
    whole.narrow(0, first_[i], count(i)).copy_(values);
  }
  return whole;
}

}  // namespace cairn::sync
