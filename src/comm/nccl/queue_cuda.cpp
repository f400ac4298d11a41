// One NCCL communicator and its stream, driven without blocking.
//
// The communicator is non-blocking (ncclConfig_t::blocking = 0): every call may return ncclInProgress, and advance() polls. Phases:
//   exchanging_id -> connecting -> open <-> issuing,  and failed from anywhere.
// A job waits for its inputs by a CUDA event on the caller's stream, is issued in order, and is done when an event after it has passed. An
// error, a cancelled job or a missed deadline aborts the communicator (ncclCommAbort), which also ends its running kernels.
#include "comm/nccl/queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include "comm/transport.h"

namespace cairn::comm {
namespace {

// An NCCL error does not name the culprit. The host transport may learn it a moment later, so the error is held back for this long.
constexpr auto kBlameGrace = std::chrono::seconds(1);
constexpr auto kWatchGrace = std::chrono::seconds(1);  // beyond a job's deadline, for the rank's own thread to act
constexpr auto kStopLimit = std::chrono::seconds(1);   // for kernels to notice the abort

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(status == cudaErrorMemoryAllocation ? Error::Kind::out_of_memory : Error::Kind::broken_invariant,
              fmt::format("CUDA: {}, while {}", cudaGetErrorString(status), what));
}

void check(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) throw nccl_error(result, nullptr);
}

// Switches the thread's current device for a scope.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "asking for the device");
    if (before_ != device) check(cudaSetDevice(device), "choosing the device");
    changed_ = before_ != device;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace

NcclEvent::NcclEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
NcclEvent::~NcclEvent() { cudaEventDestroy(event_); }
void NcclEvent::record(CUstream_st* stream) { check(cudaEventRecord(event_, stream), "recording an event"); }
void NcclEvent::block_stream(CUstream_st* stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "ordering a stream"); }

bool NcclEvent::passed() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // not an error: clear it
    return false;
  }
  check(status, "waiting for NCCL");
  return true;
}

struct NcclQueue::Id {
  ncclUniqueId bytes{};
};

struct NcclQueue::Job final : DeviceJob {
  Job(NcclQueue& on, DeviceCall what) : queue(on), call(std::move(what)), handed_over(on.context_.clock.now()) {
    ready.record(as_stream(call.after));
  }

  static CUstream_st* as_stream(void* stream) { return static_cast<CUstream_st*>(stream); }

  State state() const override { return at; }
  Error error() const override { return *failure; }
  void order(void* stream) override { done.block_stream(as_stream(stream)); }
  void cancel() noexcept override { queue.cancel(*this); }

  NcclQueue& queue;
  DeviceCall call;
  std::chrono::nanoseconds handed_over;
  NcclEvent ready, done;
  State at = State::waiting;
  std::optional<Error> failure;
};

NcclQueue::NcclQueue(NcclContext& context, Transport& host, std::vector<int> ranks, const Envelope& hello)
    : context_(context),
      host_(host),
      ranks_(std::move(ranks)),
      me_(static_cast<int>(std::find(ranks_.begin(), ranks_.end(), host.rank()) - ranks_.begin())),
      hello_(hello),
      id_(std::make_unique<Id>()) {
  const OnDevice here(context_.device);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "making a stream");
  const std::lock_guard guard(context_.lock);
  context_.queues.push_back(this);
  step(&NcclQueue::exchange_id);
}

NcclQueue::~NcclQueue() {
  const std::lock_guard guard(context_.lock);
  std::erase(context_.queues, this);
  try {
    const OnDevice here(context_.device);
    close();
  } catch (const Error&) {  // the device has failed; nothing can be freed
    return;
  }
  cudaStreamDestroy(stream_);
}

std::shared_ptr<DeviceJob> NcclQueue::add(DeviceCall call) {
  const std::lock_guard guard(context_.lock);
  const OnDevice here(context_.device);
  const auto job = std::make_shared<Job>(*this, std::move(call));
  jobs_.push_back(job);
  if (phase_ == Phase::failed) tell_failed();
  if (phase_ == Phase::open) step(&NcclQueue::issue_next);
  return job;
}

bool NcclQueue::advance() {
  const std::lock_guard guard(context_.lock);
  const OnDevice here(context_.device);
  if (phase_ == Phase::exchanging_id) step(&NcclQueue::exchange_id);
  if (phase_ == Phase::connecting || phase_ == Phase::issuing) step(&NcclQueue::connect);
  if (phase_ == Phase::open) step(&NcclQueue::issue_next);
  if (phase_ != Phase::failed) step(&NcclQueue::look);
  if (phase_ == Phase::failed && (ranks_.size() == 1 || context_.clock.now() - failed_at_ >= kBlameGrace)) tell_failed();
  return !jobs_.empty();
}

void NcclQueue::step(void (NcclQueue::*part)()) {
  try {
    (this->*part)();
  } catch (const Error& error) {
    fail(error);
  }
}

// The first rank makes the NCCL id and sends it to the others by the host transport, which has authenticated them.
void NcclQueue::exchange_id() {
  if (id_exchange_.empty()) {
    if (me_ == 0) check(ncclGetUniqueId(&id_->bytes));
    for (size_t peer = 1; peer < ranks_.size() && me_ == 0; ++peer) {
      id_exchange_.push_back(host_.send(ranks_[peer], hello_, Purpose::control, &id_->bytes, sizeof(ncclUniqueId)));
    }
    if (me_ > 0) id_exchange_.push_back(host_.recv(ranks_[0], hello_, &id_->bytes, sizeof(ncclUniqueId)));
  }
  for (const Completion& moved : id_exchange_) {
    if (!moved.done()) return;
    moved.await_resume();  // throws the error
  }
  id_exchange_.clear();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check(ncclCommInitRankConfig(&communicator_, static_cast<int>(ranks_.size()), id_->bytes, me_, &config));
  phase_ = Phase::connecting;
}

// NCCL works in the background: it creates the communicator, or enqueues a job (the first of its kind opens connections).
void NcclQueue::connect() {
  const int state = async_state();
  if (state == ncclInProgress) return;
  if (state != ncclSuccess) throw nccl_error(state, communicator_);
  if (std::exchange(phase_, Phase::open) == Phase::issuing) queued();
}

void NcclQueue::issue_next() {
  while (phase_ == Phase::open) {
    const auto next = std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->at == DeviceJob::State::waiting; });
    if (next == jobs_.end()) return;
    Job& job = **next;
    job.ready.block_stream(stream_);
    if (issue(job.call, communicator_, stream_, me_, static_cast<int>(ranks_.size()))) {
      queued();
    } else {
      phase_ = Phase::issuing;
    }
  }
}

// The first waiting job is now on the stream.
void NcclQueue::queued() {
  const auto next = std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->at == DeviceJob::State::waiting; });
  (*next)->done.record(stream_);
  (*next)->at = DeviceJob::State::queued;
}

void NcclQueue::look() {
  while (!jobs_.empty() && jobs_.front()->at == DeviceJob::State::queued && jobs_.front()->done.passed()) {
    jobs_.front()->at = DeviceJob::State::done;
    jobs_.pop_front();
  }
  if (jobs_.empty() || phase_ != Phase::open) return;
  const int state = async_state();
  if (state != ncclSuccess && state != ncclInProgress) throw nccl_error(state, communicator_);
}

void NcclQueue::watch() {
  if (phase_ == Phase::failed || jobs_.empty() || jobs_.front()->at != DeviceJob::State::queued) return;
  const Job& job = *jobs_.front();
  try {
    if (job.done.passed()) return;
    const int state = async_state();
    if (state != ncclSuccess && state != ncclInProgress) throw nccl_error(state, communicator_);
    const auto waited = context_.clock.now() - job.handed_over;
    if (waited < job.call.deadline + kWatchGrace) return;
    throw Error(Error::Kind::lost_peer,
                fmt::format("{} was not done after {:.1f} s and was stopped", job.call.name, base::seconds(waited)));
  } catch (const Error& error) {
    fail(error);
  }
}

void NcclQueue::fail(Error error) {
  if (phase_ == Phase::failed) return;
  phase_ = Phase::failed;
  error_ = std::move(error);
  failed_at_ = context_.clock.now();
  stop();
}

void NcclQueue::stop() {
  id_exchange_.clear();
  if (!communicator_) return;
  ncclCommAbort(std::exchange(communicator_, nullptr));
  const auto until = context_.clock.now() + kStopLimit;
  while (cudaStreamQuery(stream_) == cudaErrorNotReady && context_.clock.now() < until) std::this_thread::yield();
  cudaGetLastError();
}

void NcclQueue::tell_failed() {
  for (const auto& job : std::exchange(jobs_, {})) {
    job->failure = error_;
    job->at = DeviceJob::State::failed;
  }
}

void NcclQueue::cancel(Job& job) {
  const std::lock_guard guard(context_.lock);
  if (phase_ != Phase::failed) step(&NcclQueue::look);
  if (job.at == DeviceJob::State::done || job.at == DeviceJob::State::failed) return;
  fail(Error(Error::Kind::cancelled, "an operation of this group was cancelled"));
  tell_failed();
}

// Ends in good order: completes what other ranks still wait for.
void NcclQueue::close() {
  if (phase_ != Phase::open || !jobs_.empty()) return stop();
  const auto until = context_.clock.now() + context_.options.close_deadline;
  ncclCommFinalize(communicator_);
  while (async_state() == ncclInProgress && context_.clock.now() < until) std::this_thread::yield();
  if (async_state() == ncclSuccess) {
    ncclCommDestroy(std::exchange(communicator_, nullptr));
  } else {
    stop();
  }
}

int NcclQueue::async_state() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
  return asked == ncclSuccess ? state : asked;
}

}  // namespace cairn::comm
