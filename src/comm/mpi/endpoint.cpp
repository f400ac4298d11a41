// The only file that calls MPI.
#include "comm/mpi/endpoint.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <sched.h>
#include <utility>

#include <fmt/format.h>
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "base/check.h"
#include "base/error.h"
#include "comm/transport.h"

namespace cairn::comm {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

constexpr int kFrameTag = 0;
constexpr size_t kFramesAwaited = 8;                          // receives of frames that are posted in advance
constexpr auto kWithdrawDeadline = std::chrono::seconds(10);  // then the job aborts: MPI would go on using memory that is no longer ours
constexpr int kExitLostPeer = 4;

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<size_t>(length)};
}

void check(int code, const char* what) {
  if (code != MPI_SUCCESS) throw Error(Error::Kind::lost_peer, fmt::format("{}: {}", what, text_of(code)));
}

void finalize() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (!ended) MPI_Finalize();
}

// MPI cannot be initialised a second time, so it stays until the process ends.
void begin_mpi() {
  int begun = 0, ended = 0, threads = 0, main_thread = 0;
  MPI_Finalized(&ended);
  if (ended)
    base::fail_input(
        "transport mpi: this process has finalised MPI, which cannot be initialised again. Make the world before MPI_Finalize.");
  MPI_Initialized(&begun);
  if (!begun) {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads);
    std::atexit(finalize);
    std::at_quick_exit(finalize);
  }
  MPI_Query_thread(&threads);
  if (threads < MPI_THREAD_FUNNELED) {
    base::fail_input("transport mpi: MPI was initialised with MPI_THREAD_SINGLE. Call MPI_Init_thread with MPI_THREAD_FUNNELED or more.");
  }
  MPI_Is_thread_main(&main_thread);
  CAIRN_CHECK(main_thread || threads == MPI_THREAD_MULTIPLE,
              "the mpi transport is used by another thread than the one that initialised MPI");
}

// A duplicate of MPI_COMM_WORLD, so that messages of other libraries stay apart. Waits for all ranks.
MPI_Comm meet(const base::Clock& clock, Nanoseconds deadline) {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &made, &request), "MPI_Comm_idup");
  const Nanoseconds until = clock.now() + deadline;
  int met = 0;
  while (true) {
    check(MPI_Test(&request, &met, MPI_STATUS_IGNORE), "MPI_Comm_idup");
    if (met) break;
    if (clock.now() >= until) {
      int size = 0;
      MPI_Comm_size(MPI_COMM_WORLD, &size);
      throw Error(Error::Kind::lost_peer,
                  fmt::format("not all of the {} ranks that mpirun started were there within {:.0f} s", size, base::seconds(deadline)));
    }
    ::sched_yield();
  }
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  return made;
}

bool more_ranks_than_cores(MPI_Comm comm) {
  MPI_Comm here = MPI_COMM_NULL;
  int ranks = 1;
  if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here) != MPI_SUCCESS) return false;
  MPI_Comm_size(here, &ranks);
  MPI_Comm_free(&here);
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) < ranks;
}

}  // namespace

struct MpiEndpoint::State {
  struct Part {
    std::shared_ptr<MpiPayload> payload;
    std::byte* data = nullptr;
    int bytes = 0;
  };

  const base::Clock& clock;
  Limits limits;
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  uint64_t lanes = 0;  // payloads use the tags 1 to `lanes`
  std::array<MPI_Request, kFramesAwaited> awaited{};
  std::array<std::vector<std::byte>, kFramesAwaited> frames = {};
  size_t next = 0;                         // index of the receive that completes next
  bool consumed = false;                   // that frame was handed out; its receive must be posted again
  std::vector<MPI_Request> requests = {};  // of payload parts, and of frames being sent
  std::vector<Part> parts = {};            // by the index of the request
  int64_t sends = 0;                       // among them
  std::vector<int> indices = {};           // output of MPI_Testsome
  std::vector<MPI_Status> statuses = {};
  std::vector<std::shared_ptr<MpiPayload>> already_ended = {};
  bool all_done = false;
  bool oversubscribed = false;

  void await_frame(size_t i) {
    check(MPI_Irecv(frames[i].data(), static_cast<int>(frames[i].size()), MPI_BYTE, MPI_ANY_SOURCE, kFrameTag, comm, &awaited[i]),
          "MPI_Irecv");
  }

  int tag(const MpiPayload& payload) const { return static_cast<int>(1 + payload.lane % lanes); }

  // Starts one part. A send that completes at once is not tracked.
  void begin(const std::shared_ptr<MpiPayload>& payload, std::byte* data, int bytes, int with_tag) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (payload->outgoing) {
      check(MPI_Isend(data, bytes, MPI_BYTE, payload->peer, with_tag, comm, &request), "MPI_Isend");
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Isend");
      if (done) return part_ended(payload);
    } else {
      check(MPI_Irecv(data, bytes, MPI_BYTE, payload->peer, with_tag, comm, &request), "MPI_Irecv");
    }
    requests.push_back(request);
    parts.push_back({payload, data, bytes});
    sends += payload->outgoing ? 1 : 0;
  }

  void part_ended(const std::shared_ptr<MpiPayload>& payload) {
    if (--payload->parts_left == 0) already_ended.push_back(payload);
  }

  void forget(size_t i) {
    sends -= parts[i].payload->outgoing ? 1 : 0;
    requests[i] = requests.back();
    parts[i] = std::move(parts.back());
    requests.pop_back();
    parts.pop_back();
  }

  // Waits until the request has ended in any way; false: not before `until`.
  bool over(MPI_Request& request, MPI_Status& status, Nanoseconds until) const {
    int done = 0;
    while (MPI_Test(&request, &done, &status) == MPI_SUCCESS && !done) {
      if (clock.now() >= until) return false;
      ::sched_yield();
    }
    return true;
  }

  void withdraw(const Transfer& transfer) {
    const Nanoseconds until = clock.now() + kWithdrawDeadline;
    std::vector<Part> promised;
    for (size_t i = 0; i < parts.size();) {
      if (parts[i].payload->transfer.get() != &transfer) {
        ++i;
        continue;
      }
      if (!parts[i].payload->outgoing) MPI_Cancel(&requests[i]);
      MPI_Status status{};
      if (!over(requests[i], status, until)) MPI_Abort(comm, kExitLostPeer);
      int cancelled = 0;
      MPI_Test_cancelled(&status, &cancelled);
      if (!parts[i].payload->outgoing && cancelled) promised.push_back(parts[i]);
      forget(i);
    }
    // Parts of one lane arrive in the order of their bytes.
    std::sort(promised.begin(), promised.end(), [](const Part& a, const Part& b) { return a.data < b.data; });
    for (const Part& part : promised) {
      const auto instead = std::make_shared<MpiPayload>(MpiPayload{.peer = part.payload->peer,
                                                                   .lane = part.payload->lane,
                                                                   .bytes = part.bytes,
                                                                   .owned = allocate_plain(part.bytes),
                                                                   .parts_left = 1});
      begin(instead, static_cast<std::byte*>(instead->owned.get()), part.bytes, tag(*instead));
    }
  }

  // Cancels what is posted. The memory of a send that nobody received is leaked on purpose: MPI may still read it.
  void end() noexcept {
    for (size_t i = 0; i < kFramesAwaited; ++i) {
      if (awaited[i] == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&awaited[i]);
      MPI_Wait(&awaited[i], MPI_STATUS_IGNORE);
    }
    const Nanoseconds until = clock.now() + std::chrono::seconds(1);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!parts[i].payload->outgoing) MPI_Cancel(&requests[i]);
      MPI_Status status{};
      if (!over(requests[i], status, parts[i].payload->outgoing ? clock.now() : until)) new Part(std::move(parts[i]));
    }
    if (all_done) MPI_Comm_free(&comm);
  }
};

MpiEndpoint::MpiEndpoint(const base::Clock& clock, Limits limits) {
  begin_mpi();
  state_ = std::make_unique<State>(State{.clock = clock, .limits = limits, .comm = meet(clock, limits.meet_deadline)});
  State& s = *state_;
  MPI_Comm_rank(s.comm, &s.rank);
  MPI_Comm_size(s.comm, &s.size);
  s.oversubscribed = more_ranks_than_cores(s.comm);
  int* highest = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &highest, &found);
  s.lanes = static_cast<uint64_t>(found ? *highest : 32767) - 1;
  for (size_t i = 0; i < kFramesAwaited; ++i) {
    s.awaited[i] = MPI_REQUEST_NULL;
    s.frames[i].resize(static_cast<size_t>(limits.frame_bytes));
    s.await_frame(i);
  }
}

MpiEndpoint::~MpiEndpoint() { state_->end(); }

int MpiEndpoint::rank() const { return state_->rank; }
int MpiEndpoint::size() const { return state_->size; }
bool MpiEndpoint::sending() const { return state_->sends > 0; }
bool MpiEndpoint::receiving() const { return static_cast<int64_t>(state_->parts.size()) > state_->sends; }
bool MpiEndpoint::oversubscribed() const { return state_->oversubscribed; }
void MpiEndpoint::set_all_done() { state_->all_done = true; }
void MpiEndpoint::withdraw(const Transfer& transfer) { state_->withdraw(transfer); }

void MpiEndpoint::send_frame(int to, std::shared_ptr<std::byte[]> frame, int64_t bytes) {
  CAIRN_CHECK(bytes <= state_->limits.frame_bytes, "a frame of {} bytes, at most {} are allowed", bytes, state_->limits.frame_bytes);
  std::byte* data = frame.get();
  const auto payload = std::make_shared<MpiPayload>(MpiPayload{.outgoing = true, .peer = to, .owned = std::move(frame), .parts_left = 1});
  state_->begin(payload, data, static_cast<int>(bytes), kFrameTag);
}

std::optional<MpiEndpoint::ReceivedFrame> MpiEndpoint::next_frame() {
  State& s = *state_;
  if (std::exchange(s.consumed, false)) {
    s.await_frame(s.next);
    s.next = (s.next + 1) % kFramesAwaited;
  }
  MPI_Status status{};
  int done = 0, bytes = 0;
  check(MPI_Test(&s.awaited[s.next], &done, &status), "MPI_Irecv");
  if (!done) return std::nullopt;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  s.consumed = true;
  return ReceivedFrame{status.MPI_SOURCE, {s.frames[s.next].data(), static_cast<size_t>(bytes)}};
}

void MpiEndpoint::start(std::shared_ptr<MpiPayload> payload) {
  const int64_t most = state_->limits.part_bytes;
  payload->parts_left = std::max<int64_t>(1, (payload->bytes + most - 1) / most);
  const int64_t parts = payload->parts_left;
  for (int64_t i = 0; i < parts; ++i) {
    state_->begin(payload, payload->data + i * most, static_cast<int>(std::min(most, payload->bytes - i * most)), state_->tag(*payload));
  }
}

std::vector<std::shared_ptr<MpiPayload>> MpiEndpoint::ended() {
  State& s = *state_;
  if (!s.requests.empty()) {
    const int count = static_cast<int>(s.requests.size());
    s.indices.resize(s.requests.size());
    s.statuses.resize(s.requests.size());
    int done = 0;
    const int code = MPI_Testsome(count, s.requests.data(), &done, s.indices.data(), s.statuses.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
    if (done > 0) {
      for (int i = 0; i < done; ++i) {
        const std::shared_ptr<MpiPayload>& payload = s.parts[s.indices[i]].payload;
        if (code == MPI_ERR_IN_STATUS && s.statuses[i].MPI_ERROR != MPI_SUCCESS) payload->error = text_of(s.statuses[i].MPI_ERROR);
        s.part_ended(payload);
      }
      std::sort(s.indices.begin(), s.indices.begin() + done,
                std::greater<>());  // from the last one: forget() moves the last request into the gap
      for (int i = 0; i < done; ++i) s.forget(static_cast<size_t>(s.indices[i]));
    }
  }
  return std::exchange(s.already_ended, {});
}

}  // namespace cairn::comm
