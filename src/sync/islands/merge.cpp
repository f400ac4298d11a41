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
#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/memory_scope.h"
#include "comm/collectives/coded_all_reduce.h"
#include "kernels/aten.h"
#include "kernels/streams.h"

namespace cairn::sync {
namespace {

// A header before the compressed values: weight and note.
constexpr size_t kHeadBytes = 2 * sizeof(double);
constexpr auto kCheckWait = std::chrono::milliseconds(200), kCheckWork = std::chrono::milliseconds(1);

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
  members_ = parts.quorum.members();
  if (parts.quorum.count() > parts.compressor.all_gather_limit()) {
    for (size_t i = 0; i < members_.size(); ++i)
      if (members_[i] != 0) owners_.push_back(static_cast<int>(i));
    for (const int64_t count : comm::block_counts(elements_, static_cast<int>(owners_.size()), parts.compressor.block()))
      first_.push_back(first_.back() + count);
  } else {
    first_.push_back(elements_);
    round_.emplace(
        parts.quorum.begin(parts.step, parts.part, parts.wants_to_stop, parts.admits));  // now: the members are those of this step
  }
  // The recipients are those of this step too.
  outgoing_.resize(members_.size());
  unsent_.resize(members_.size());
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
    if (parts_.quorum.messenger().lost(static_cast<int>(island))) {
      unsent_[island] = true;
      continue;
    }
    bytes_sent_ += static_cast<int64_t>(own_code(chunk).size());
    parts_.quorum.messenger().send(static_cast<int>(island), std::move(outgoing_[island]), comm::Purpose::gradient);
  }
  outgoing_.clear();
  return true;
}

// Sends the update to members that can be reached again.
void IslandMerge::send_late() {
  IslandMessenger& messenger = parts_.quorum.messenger();
  for (size_t island = 0; island < unsent_.size(); ++island) {
    if (!unsent_[island] || messenger.lost(static_cast<int>(island))) continue;
    unsent_[island] = false;
    if (messenger.incarnation(static_cast<int>(island)) != members_[island]) continue;  // it has started again
    const auto chunk =
        owners_.empty() ? 0 : static_cast<size_t>(std::find(owners_.begin(), owners_.end(), static_cast<int>(island)) - owners_.begin());
    const bool has_result = !owners_.empty() && round_;
    const std::vector<std::byte>& body = has_result ? own_result_ : own_[chunk];
    bytes_sent_ += static_cast<int64_t>(body.size() - kHeadBytes);
    messenger.send(static_cast<int>(island), round_ ? round_->tag() : chunk_tag(), body, comm::Purpose::gradient);
  }
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
  for (const int island : owners_) {
    const uint64_t member = members_[static_cast<size_t>(island)];
    if (island == messenger.me() || messenger.lost(island) || messenger.incarnation(island) != member) continue;
    if (messenger.incarnation_of(island, chunk_tag()) != member) return false;
  }
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
std::vector<IslandMerge::Code> IslandMerge::codes_of(const MessageTag& tag, size_t chunk, const Incarnations& included) const {
  std::vector<Code> codes;
  for (size_t island = 0; island < included.size(); ++island) {
    if (included[island] == 0) continue;
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
  Incarnations heard(members_.size());
  for (const int island : owners_)
    if (island == parts_.quorum.me() || messenger.incarnation_of(island, chunk_tag()) == members_[static_cast<size_t>(island)])
      heard[static_cast<size_t>(island)] = members_[static_cast<size_t>(island)];
  included_ = static_cast<int>(members_.size()) - static_cast<int>(std::count(heard.begin(), heard.end(), 0));
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
  round_.emplace(parts_.quorum.begin(parts_.step, parts_.part, parts_.wants_to_stop, parts_.admits));
  for (int island = 0; island < messenger.size(); ++island) {
    if (island == messenger.me() || !is_member(island)) continue;
    unsent_[static_cast<size_t>(island)] = messenger.lost(island);
    if (messenger.lost(island)) continue;
    bytes_sent_ += static_cast<int64_t>(result.message.size() - kHeadBytes);
    parts_.quorum.messenger().send(island, round_->tag(), result.message, comm::Purpose::gradient);
  }
  own_result_ = std::move(result.message);
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
  send_late();
  if (!round_) {
    messenger.pump();
    if (!merging_.valid()) {
      if (!all_chunks_arrived()) return false;
      begin_merging();
    }
    if (!is_ready(merging_)) return false;
    send_result(merging_.get());
  }
  if (!round_->progress()) {
    const Incarnations wanted = round_->wanted();
    if (!wanted.empty() && merge_of(wanted)) round_->set_digest(wanted, found_.digest);
    return round_->decided() && progress();
  }
  const RoundDecision& decision = round_->decision();
  if (tried_ != decision.included && !are_here(decision.included)) {
    if (!missing_since_) missing_since_ = messenger.now();
    return false;
  }
  if (!merge_of(decision.included)) return false;
  differs_ = found_.digest != decision.digest;
  return !differs_;
}

// Whether all these updates have arrived.
bool IslandMerge::are_here(const Incarnations& included) const {
  const IslandMessenger& messenger = parts_.quorum.messenger();
  for (int island = 0; island < messenger.size(); ++island)
    if (included[static_cast<size_t>(island)] != 0 && island != messenger.me() &&
        messenger.incarnation_of(island, round_->tag()) != included[static_cast<size_t>(island)])
      return false;
  return true;
}

// Merges these updates, which have arrived. True: the result is in found_.
bool IslandMerge::merge_of(const Incarnations& included) {
  if (tried_ != included) {
    if (result_.valid()) result_.wait();
    tried_ = included;
    std::vector<Code> codes;
    std::vector<std::span<const std::byte>> results;  // of the owners
    bool lacks = false;
    if (owners_.empty()) codes = codes_of(round_->tag(), 0, included);
    for (size_t i = 0; i < owners_.size(); ++i) {
      const bool own = owners_[i] == parts_.quorum.me();
      const std::vector<std::byte>* body = own ? nullptr : parts_.quorum.update_from(owners_[i], parts_.step, parts_.part);
      // The results of all owners are needed: if an owner was lost with its chunk, the round fails.
      lacks = lacks || (count(i) > 0 &&
                        (included[static_cast<size_t>(owners_[i])] == 0 || (own ? !mine_.defined() : !body || body->size() < kHeadBytes)));
      results.push_back(body ? std::span(*body).subspan(std::min(body->size(), kHeadBytes)) : std::span<const std::byte>());
    }
    result_ = start<Merged>([this, lacks, codes = std::move(codes), results = std::move(results)] {
      Merged made;
      if (!lacks) made.values = owners_.empty() ? merged(codes, 0) : put_together(results);
      if (!made.values.defined()) return made;
      const at::Tensor host = made.values.cpu().contiguous();
      made.digest = base::checksum(std::as_bytes(std::span(host.const_data_ptr<float>(), static_cast<size_t>(host.numel()))));
      return made;
    });
  }
  if (result_.valid()) {
    if (!is_ready(result_)) return false;
    found_ = result_.get();
  }
  return true;
}

// False: ending_ says why there is none.
bool IslandMerge::wait_for_decision() {
  Quorum& quorum = parts_.quorum;
  IslandMessenger& messenger = quorum.messenger();
  send_packed(/*waits=*/true);
  while (!progress()) {
    // An island that was left out returns with a later state: it need not wait for this one.
    const auto patience = quorum.decisions().is_removed() ? std::chrono::nanoseconds{0} : quorum.timeout() / 2;
    const bool missing = missing_since_ && messenger.now() - *missing_since_ > patience;
    if (differs_ || missing) {
      messenger.warn(fmt::format("step {}: this island cannot follow a decision of the others: {}", parts_.step,
                                 differs_ ? "its merge of the same updates differs" : "updates that count did not arrive"));
      ending_ = messenger.link().comes_back() ? RoundEnding::rejoin : RoundEnding::minority;
      return false;
    }
    if (const auto ending = quorum.give_up(begun_, round_ && round_->decided())) {
      ending_ = *ending;
      return false;
    }
    // Work in the background does not wake the messenger.
    const bool works = packing_.valid() || merging_.valid() || result_.valid();
    messenger.wait([&] { return progress(); }, messenger.now() + (works ? kCheckWork : kCheckWait));
  }
  return true;
}

at::Tensor IslandMerge::wait() {
  if (!wait_for_decision()) {
    if (ending_ != RoundEnding::alone) return {};
    included_ = 1;
    std::vector<Contribution> own{{as_sent(), 1}};
    return merge(parts_.rule, own);
  }
  parts_.quorum.conclude(*round_);
  note_outcome();
  keep_for_stream(found_.values);
  return found_.values;
}

void IslandMerge::note_outcome() {
  const RoundDecision& decision = round_->decision();
  stop_ = decision.stop;
  const auto included =
      static_cast<int>(decision.included.size()) - static_cast<int>(std::count(decision.included.begin(), decision.included.end(), 0));
  note_ = 0;
  for (size_t island = 0; island < decision.included.size(); ++island) {
    if (decision.included[island] == 0) continue;
    double note = parts_.note;
    if (const std::vector<std::byte>* body = parts_.quorum.update_from(static_cast<int>(island), parts_.step, parts_.part);
        body && body->size() >= kHeadBytes)
      std::memcpy(&note, body->data() + sizeof(double), sizeof(double));
    note_ += note / included;
    if (note > 0 && std::isfinite(note)) least_note_ = least_note_ > 0 ? std::min(least_note_, note) : note;
  }
  if (owners_.empty()) included_ = included;
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
