// Local rank 0 passes set-ups to the other ranks of its machine (siblings.h) over a Unix SOCK_SEQPACKET socket:
//
//   sibling -> rank 0   hello    local rank, local size, world rank
//   rank 0              waits until all local ranks have said hello
//   rank 0 -> sibling   bundle   numbers of bytes and files; then the file descriptors (SCM_RIGHTS), then the bytes in pieces
//   sibling -> rank 0   thanks
// Errors travel as `refused` (to the wrong process) or `lost` (to all others), with a sentence.
#include "comm/rendezvous/siblings.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "comm/rendezvous/sibling_packet.h"

namespace cairn::comm {

using namespace sibling;
using Nanoseconds = std::chrono::nanoseconds;

namespace {

constexpr size_t kUnidentifiedMax = 64;  // connections that have not sent their hello

}  // namespace

// --- local rank 0
// ---------------------------------------------------------------------------------------------------------------------------

class SiblingHost::State {
 public:
  State(const std::string& job, int local_size, int own_rank, Nanoseconds deadline)
      : job_(job), local_size_(local_size), own_rank_(own_rank), due_(deadline), listener_(make_socket()) {
    const Address address = address_of(job);
    if (::bind(listener_.fd(), address.generic(), address.length) != 0 || ::listen(listener_.fd(), SOMAXCONN) != 0)
      base::fail_input("cannot wait for the ranks of this machine (job {}): {}", job_,
                       errno == EADDRINUSE ? "another process does so already; does local rank 0 run twice?" : std::strerror(errno));
  }

  std::vector<int> ranks() {
    while (!missing().empty()) {
      const bool last = due_.over();
      bool heard = turn(callers_.size() < static_cast<size_t>(local_size_) + kUnidentifiedMax) && let_in();
      for (Caller& caller : callers_) {
        if (caller.ready) hear(caller);
        heard |= caller.ready;
      }
      std::erase_if(callers_, [](const Caller& caller) { return caller.socket.fd() < 0; });
      if (last && !heard)
        lose(-1, fmt::format("local rank {} of {} lost: not there {:.1f} s after the start (job {}){}{}", fmt::join(missing(), ", "),
                             local_size_, due_.waited_s(), job_, refused_.empty() ? "" : "; refused: ", refused_));
    }
    std::erase_if(callers_, [](const Caller& caller) { return caller.local_rank < 0; });  // connections without a hello are dropped
    std::vector<int> all{own_rank_};
    for (int local = 1; local < local_size_; ++local) all.push_back(find_local(local)->rank);
    return all;
  }

  void hand_out(const std::vector<Bundle>& bundles) {
    CAIRN_CHECK(missing().empty(), "bundles handed out before local rank {} came", fmt::join(missing(), ", "));
    for (int local = 1; local < local_size_; ++local) {
      Caller& to = *find_local(local);
      const int error = send_bundle(to.socket.fd(), bundles[local]);
      if (error == ETIMEDOUT) too_late(to);
      if (error) lose(local, fmt::format("{} lost: could not be handed its set-up: {}", name(to), std::strerror(error)));
    }
    const auto waits = [](const Caller& caller) { return caller.local_rank > 0 && !caller.thanked; };
    while (std::any_of(callers_.begin(), callers_.end(), waits)) {
      const bool last = due_.over();
      turn(false);
      bool heard = false;
      for (Caller& caller : callers_) {
        if (!caller.ready || !waits(caller)) continue;
        take_thanks(caller);
        heard = true;
      }
      if (last && !heard) too_late(*std::find_if(callers_.begin(), callers_.end(), waits));
    }
  }

 private:
  struct Caller {
    File socket;
    ucred process;
    int local_rank = -1, rank = -1;  // -1: no hello yet
    bool thanked = false;
    bool ready = false;  // readable
  };

  static std::string name(const Caller& caller) { return fmt::format("local rank {} (rank {})", caller.local_rank, caller.rank); }

  Caller* find_local(int local_rank) {
    const auto found = std::find_if(callers_.begin(), callers_.end(), [&](const Caller& one) { return one.local_rank == local_rank; });
    return found == callers_.end() ? nullptr : &*found;
  }

  std::vector<int> missing() {
    std::vector<int> list;
    for (int local = 1; local < local_size_; ++local) {
      if (!find_local(local)) list.push_back(local);
    }
    return list;
  }

  // Waits until there is something to do. True: a new connection waits to be accepted.
  bool turn(bool listening) {
    std::vector<pollfd> watched{{listening ? listener_.fd() : -1, POLLIN, 0}};
    for (const Caller& caller : callers_) watched.push_back({caller.thanked ? -1 : caller.socket.fd(), POLLIN, 0});
    due_.wait(watched);
    for (size_t i = 0; i < callers_.size(); ++i) callers_[i].ready = watched[i + 1].revents != 0;
    return watched[0].revents != 0;
  }

  // Accepts a connection. True: it belongs to this user.
  bool let_in() {
    File socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.fd() < 0) {  // it has gone again, or no file descriptor is left
      due_.wait({}, kPause);
      return false;
    }
    const ucred process = peer_of(socket);
    if (process.uid != ::geteuid()) return false;
    callers_.push_back({.socket = std::move(socket), .process = process});
    return true;
  }

  void hear(Caller& caller) {
    Packet packet;
    const Received got = receive(caller.socket.fd(), packet);
    if (got == Received::nothing) return;
    if (caller.local_rank > 0) lose(caller.local_rank, name(caller) + " lost: ended before all ranks of this machine were there");
    if (got == Received::end || packet.head.kind != Kind::hello)
      caller.socket = File();
    else
      admit(caller, packet.head);
  }

  void admit(Caller& caller, const Head& hello) {
    const Caller* same_place = find_local(hello.local_rank);
    const bool same_rank = hello.rank == own_rank_ || std::any_of(callers_.begin(), callers_.end(), [&](const Caller& other) {
                             return other.local_rank > 0 && other.rank == hello.rank;
                           });
    if (hello.local_size != local_size_) {
      const auto sentence = fmt::format("local rank {} was told of {} ranks on this machine, local rank 0 of {}: they must agree (job {})",
                                        hello.local_rank, hello.local_size, local_size_, job_);
      for (const Caller& other : callers_) try_send(other.socket.fd(), {.kind = Kind::refused}, sentence);
      throw Error(Error::Kind::bad_input, sentence);
    }
    if (hello.local_rank < 1 || hello.local_rank >= local_size_)
      refuse(caller, fmt::format("local rank {}: must be from 1 to {}", hello.local_rank, local_size_ - 1));
    else if (same_place)
      refuse(caller, fmt::format("local rank {} runs twice: as process {} and as process {} (job {})", hello.local_rank,
                                 same_place->process.pid, caller.process.pid, job_));
    else if (same_rank)
      refuse(caller, fmt::format("rank {} runs twice, the second time as local rank {} (job {})", hello.rank, hello.local_rank, job_));
    else
      std::tie(caller.local_rank, caller.rank) = std::pair(hello.local_rank, hello.rank);
  }

  // Refuses the later of two: it may belong to another run that was started by mistake.
  void refuse(Caller& caller, const std::string& sentence) {
    try_send(caller.socket.fd(), {.kind = Kind::refused}, sentence);
    caller.socket = File();
    refused_ = sentence;
  }

  int send_bundle(int fd, const Bundle& bundle) {
    int error = send_packet(due_, fd, {.kind = Kind::bundle, .bytes = bundle.bytes.size(), .files = bundle.files.size()});
    for (size_t at = 0; at < bundle.files.size() && !error; at += kFilesAtOnce) {
      std::string flags;
      std::vector<int> open;
      for (const int file : std::span(bundle.files).subspan(at, std::min(kFilesAtOnce, bundle.files.size() - at))) {
        flags += file >= 0 ? 'o' : '-';
        if (file >= 0) open.push_back(file);
      }
      error = send_packet(due_, fd, {.kind = Kind::files}, flags, open);
    }
    for (size_t at = 0; at < bundle.bytes.size() && !error; at += kPieceBytes)
      error = send_packet(due_, fd, {.kind = Kind::piece}, std::string_view(bundle.bytes).substr(at, kPieceBytes));
    return error;
  }

  void take_thanks(Caller& caller) {
    Packet packet;
    const Received got = receive(caller.socket.fd(), packet);
    if (got == Received::nothing) return;
    if (got == Received::end || packet.head.kind != Kind::thanks)
      lose(caller.local_rank, name(caller) + " lost: ended before it had taken its set-up");
    caller.thanked = true;
  }

  [[noreturn]] void too_late(const Caller& caller) {
    lose(caller.local_rank, fmt::format("{} lost: has not taken its set-up {:.1f} s after the start", name(caller), due_.waited_s()));
  }

  // Tells the other ranks too, so that each can name the culprit.
  [[noreturn]] void lose(int local_rank, const std::string& sentence) {
    const Caller* culprit = local_rank > 0 ? find_local(local_rank) : nullptr;
    const int rank = culprit ? culprit->rank : -1;
    for (const Caller& other : callers_) {
      if (&other != culprit) try_send(other.socket.fd(), {.kind = Kind::lost, .rank = rank}, sentence);
    }
    throw Error(Error::Kind::lost_peer, sentence).about_peer(rank);
  }

  std::string job_;
  int local_size_, own_rank_;
  Due due_;
  File listener_;
  std::vector<Caller> callers_;
  std::string refused_;  // the latest refusal, for the error about a missing rank
};

SiblingHost::SiblingHost(const std::string& job, int local_size, int own_rank, Nanoseconds deadline) : own_rank_(own_rank) {
  CAIRN_CHECK(local_size >= 1, "{} ranks on this machine", local_size);
  if (local_size > 1) state_ = std::make_unique<State>(job, local_size, own_rank, deadline);
}

SiblingHost::~SiblingHost() = default;

std::vector<int> SiblingHost::ranks() { return state_ ? state_->ranks() : std::vector{own_rank_}; }

void SiblingHost::hand_out(const std::vector<Bundle>& bundles) {
  const size_t ranks = this->ranks().size();
  CAIRN_CHECK(bundles.size() == ranks, "{} bundles for {} ranks", bundles.size(), ranks);
  for (const Bundle& bundle : bundles)
    CAIRN_CHECK(bundle.bytes.size() <= kBytesMax && bundle.files.size() <= kFilesMax,
                "a bundle of {} bytes and {} files, at most {} and {}", bundle.bytes.size(), bundle.files.size(), kBytesMax, kFilesMax);
  if (state_) state_->hand_out(bundles);
}

// --- the others --------------------------------------------------------------------------------------------------------------------------

class Sibling::State {
 public:
  State(const std::string& job, int local_rank, int local_size, int rank, Nanoseconds deadline) : job_(job), due_(deadline) {
    call();
    const Head hello{.kind = Kind::hello, .local_rank = local_rank, .local_size = local_size, .rank = rank};
    if (const int error = send_packet(due_, socket_.fd(), hello)) lose(std::strerror(error));
    due_.extend(deadline / 4);  // local rank 0 may have started later, and knows better who is missing
  }

  Bundle collect() {
    const Packet bundle = next(Kind::bundle);
    const auto [bytes, count] = std::pair(bundle.head.bytes, bundle.head.files);
    if (bytes > kBytesMax || count > kFilesMax)
      lose(fmt::format("sent a bad set-up: {} bytes and {} files, at most {} and {} are allowed", bytes, count, kBytesMax, kFilesMax));
    std::vector<File> files;
    while (files.size() < count) take_files(next(Kind::files), count, files);
    Bundle result;
    while (result.bytes.size() < bytes) {
      const Packet piece = next(Kind::piece);
      if (piece.body.empty() || piece.body.size() > bytes - result.bytes.size()) lose("sent a bad set-up: more bytes than it said");
      result.bytes += piece.body;
    }
    for (File& file : files) result.files.push_back(file.release());
    send_packet(due_, socket_.fd(), {.kind = Kind::thanks});  // if local rank 0 is gone by now, others will notice
    socket_ = File();
    return result;
  }

  bool open() const { return socket_.fd() >= 0; }

 private:
  // Repeats until local rank 0 listens.
  void call() {
    const Address address = address_of(job_);
    std::optional<uid_t> other_user;
    while (true) {
      File socket = make_socket();
      if (::connect(socket.fd(), address.generic(), address.length) == 0) {
        const uid_t user = peer_of(socket).uid;
        if (user == ::geteuid()) {
          socket_ = std::move(socket);
          return;
        }
        other_user = user;
      } else if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
        lose(std::strerror(errno));
      }
      if (due_.over())
        lose(fmt::format("not there {:.1f} s after the start{}", due_.waited_s(),
                         other_user ? fmt::format("; user {} has taken its socket name", *other_user) : ""));
      due_.wait({}, kPause);
    }
  }

  Packet next(Kind kind) {
    Packet packet;
    Received got = Received::nothing;
    while ((got = receive(socket_.fd(), packet)) == Received::nothing) {
      if (due_.over()) lose(fmt::format("has handed out nothing {:.1f} s after the start", due_.waited_s()));
      pollfd readable{socket_.fd(), POLLIN, 0};
      due_.wait({&readable, 1});
    }
    if (got == Received::end) lose("ended before it had handed out the set-up");
    if (packet.head.kind == Kind::refused) throw Error(Error::Kind::bad_input, packet.body);
    if (packet.head.kind == Kind::lost) throw Error(Error::Kind::lost_peer, packet.body).about_peer(packet.head.rank);
    if (packet.head.kind != kind) lose("sent a bad set-up: out of order");
    return packet;
  }

  void take_files(Packet packet, size_t count, std::vector<File>& files) {
    size_t taken = 0;
    if (packet.body.empty() || packet.body.size() > count - files.size()) lose("sent a bad set-up: more files than it said");
    for (const char flag : packet.body) {
      const bool open = flag == 'o';
      if (open && taken == packet.files.size()) lose("sent files that did not all arrive: is the limit of open files (ulimit -n) too low?");
      files.push_back(open ? std::move(packet.files[taken++]) : File());
    }
  }

  [[noreturn]] void lose(const std::string& why) {
    throw Error(Error::Kind::lost_peer, fmt::format("local rank 0 lost: {} (job {})", why, job_));
  }

  std::string job_;
  Due due_;
  File socket_;
};

Sibling::Sibling(const std::string& job, int local_rank, int local_size, int rank, Nanoseconds deadline) {
  CAIRN_CHECK(local_rank >= 1 && local_rank < local_size, "local rank {} of {}", local_rank, local_size);
  state_ = std::make_unique<State>(job, local_rank, local_size, rank, deadline);
}

Sibling::~Sibling() = default;

Bundle Sibling::collect() {
  CAIRN_CHECK(state_->open(), "collected twice");
  return state_->collect();
}

}  // namespace cairn::comm
