#include "comm/rendezvous/siblings.h"

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <optional>
#include <poll.h>
#include <regex>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/rendezvous/sibling_packet.h"

namespace cairn::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;

std::string fresh_job() {
  static std::atomic<int> count{0};
  return fmt::format("test/{}/{}", ::getpid(), ++count);
}

void pause(std::chrono::milliseconds time) { ::poll(nullptr, 0, static_cast<int>(time.count())); }

// An open file that holds this text.
int file_with(const std::string& text) {
  const int fd = ::memfd_create("bundle", MFD_CLOEXEC);
  EXPECT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return fd;
}

std::string text_of(int fd) {
  std::string text(100, '\0');
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  text.resize(length < 0 ? 0 : static_cast<size_t>(length));
  return text;
}

void close_all(const Bundle& bundle) {
  for (const int fd : bundle.files) {
    if (fd >= 0) ::close(fd);
  }
}

std::vector<Bundle> simple_bundles(int count) {
  std::vector<Bundle> bundles(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) bundles[i].bytes = fmt::format("for {}", i);
  return bundles;
}

// What goes wrong in `body`; "" if nothing does.
struct Trouble {
  std::string what;
  Error::Kind kind = Error::Kind::broken_invariant;
  int peer = -1;
};
Trouble trouble_in(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    static const std::regex time("[0-9]+\\.[0-9] s after");  // how long it took depends on the machine
    return {std::regex_replace(error.what(), time, "T s after"), error.kind(), error.peer()};
  }
  return {};
}

// Runs the body in a process of its own.
pid_t in_process(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int code = 0;
  try {
    body();
  } catch (...) {
    code = 1;
  }
  ::_exit(code);
}

int exit_code(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A process that knows the socket name and nothing else.
File connect_to(const sibling::Address& address) {
  File socket = sibling::make_socket();
  EXPECT_EQ(::connect(socket.fd(), address.generic(), address.length), 0);
  return socket;
}

TEST(Siblings, OneRankNeedsNoSocket) {
  const std::string job = fresh_job();
  SiblingHost host(job, 1, 7, 0ns), again(job, 1, 7, 0ns);
  EXPECT_THAT(host.ranks(), ElementsAre(7));
  EXPECT_NO_THROW(host.hand_out(simple_bundles(1)));
}

TEST(Siblings, EachGetsItsOwnBytesAndFilesWhateverTheOrder) {
  for (const bool late_host : {false, true}) {
    const std::string job = fresh_job();
    std::vector<std::jthread> siblings;
    for (const int local : {3, 1, 2}) {
      siblings.emplace_back([&job, local, late_host] {
        if (!late_host) pause(std::chrono::milliseconds(10 * local));
        const Bundle bundle = Sibling(job, local, 4, 40 + local, 10s).collect();
        EXPECT_EQ(bundle.bytes, fmt::format("for {}", local));
        ASSERT_EQ(bundle.files.size(), 3u);
        EXPECT_EQ(text_of(bundle.files[0]), fmt::format("first file of {}", local));
        EXPECT_EQ(bundle.files[1], -1);
        EXPECT_EQ(text_of(bundle.files[2]), fmt::format("last file of {}", local));
        EXPECT_EQ(::fcntl(bundle.files[0], F_GETFD), FD_CLOEXEC);
        close_all(bundle);
      });
    }
    if (late_host) pause(50ms);
    SiblingHost host(job, 4, 40, 10s);
    EXPECT_THAT(host.ranks(), ElementsAre(40, 41, 42, 43));
    auto bundles = simple_bundles(4);
    for (int i = 1; i < 4; ++i)
      bundles[i].files = {file_with(fmt::format("first file of {}", i)), -1, file_with(fmt::format("last file of {}", i))};
    host.hand_out(bundles);
    for (const Bundle& bundle : bundles) {
      for (const int fd : bundle.files) EXPECT_EQ(fd < 0, ::fcntl(fd, F_GETFD) < 0);  // still the caller's
      close_all(bundle);
    }
  }
}

TEST(Siblings, ProcessesShareTheMemoryTheyWereHanded) {
  const std::string job = fresh_job();
  std::vector<pid_t> children;
  for (int local = 1; local < 3; ++local) {
    children.push_back(in_process([&] {
      const Bundle bundle = Sibling(job, local, 3, 5 * local, 10s).collect();
      void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, bundle.files.at(0), 0);
      if (memory == MAP_FAILED) throw std::exception();
      static_cast<char*>(memory)[local] = static_cast<char>('a' + local);
    }));
  }
  SiblingHost host(job, 3, 0, 10s);
  EXPECT_THAT(host.ranks(), ElementsAre(0, 5, 10));
  const int segment = ::memfd_create("segment", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(segment, 4096), 0);
  host.hand_out(std::vector<Bundle>(3, {"", {segment}}));
  for (const pid_t pid : children) EXPECT_EQ(exit_code(pid), 0);
  char seen[3] = {};
  EXPECT_EQ(::pread(segment, seen, 3, 0), 3);
  EXPECT_EQ(seen[1], 'b');
  EXPECT_EQ(seen[2], 'c');
  ::close(segment);
}

TEST(Siblings, LargeBundlesTravelInPieces) {
  // Around the sizes at which a packet is full.
  struct Size {
    size_t bytes, files;
  };
  for (const auto [bytes, files] : {Size{0, 0}, {1, 1}, {32767, 199}, {32768, 200}, {32769, 201}, {3'000'017, 401}}) {
    const std::string job = fresh_job();
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + i / 251);
    const int file = file_with("the same");
    std::vector<Bundle> bundles(2);
    bundles[1] = {text, std::vector<int>(files, file)};
    for (size_t i = 0; i < files; i += 7) bundles[1].files[i] = -1;
    const std::jthread other([&, count = files] {
      const Bundle bundle = Sibling(job, 1, 2, 1, 10s).collect();
      EXPECT_TRUE(bundle.bytes == text) << text.size();
      ASSERT_EQ(bundle.files.size(), count);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(bundle.files[i] < 0, i % 7 == 0) << i;
        ASSERT_EQ(text_of(bundle.files[i]), i % 7 == 0 ? "" : "the same") << i;
      }
      close_all(bundle);
    });
    SiblingHost host(job, 2, 0, 10s);
    host.hand_out(bundles);
    ::close(file);
  }
}

TEST(Siblings, LongJobNamesAreToldApart) {
  const std::string same(300, 'x');
  const sibling::Address a = sibling::address_of(same + "a"), b = sibling::address_of(same + "b");
  EXPECT_LE(a.length, sizeof(sockaddr_un));
  EXPECT_FALSE(a.length == b.length && std::memcmp(&a.name, &b.name, a.length) == 0);
  const std::jthread other([&] { EXPECT_EQ(Sibling(same, 1, 2, 1, 10s).collect().bytes, "for 1"); });
  SiblingHost(same, 2, 0, 10s).hand_out(simple_bundles(2));
}

// --- trouble -----------------------------------------------------------------------------------------------------------------------------

TEST(Siblings, WhoDoesNotComeIsNamedToAll) {
  const std::string job = fresh_job();
  Trouble told;
  std::jthread other([&] { told = trouble_in([&] { Sibling(job, 2, 4, 2, 10s).collect(); }); });
  const Trouble seen = trouble_in([&] { SiblingHost(job, 4, 0, 200ms).ranks(); });
  other.join();
  EXPECT_EQ(seen.kind, Error::Kind::lost_peer);
  EXPECT_EQ(seen.what, fmt::format("local rank 1, 3 of 4 lost: not there T s after the start (job {})", job));
  EXPECT_EQ(told.kind, Error::Kind::lost_peer);
  EXPECT_EQ(told.what, seen.what);
}

TEST(Siblings, AFirstThatDoesNotComeIsNamed) {
  const std::string job = fresh_job();
  const base::RealClock clock;
  const Trouble seen = trouble_in([&] { Sibling(job, 1, 2, 1, 100ms); });
  EXPECT_EQ(seen.kind, Error::Kind::lost_peer);
  EXPECT_EQ(seen.what, fmt::format("local rank 0 lost: not there T s after the start (job {})", job));
  EXPECT_LT(clock.now(), 5s);
}

TEST(Siblings, AFirstThatNeverAnswersIsNamed) {
  const std::string job = fresh_job();
  SiblingHost frozen(job, 2, 0, 10s);
  const Trouble seen = trouble_in([&] { Sibling(job, 1, 2, 1, 100ms).collect(); });
  EXPECT_EQ(seen.kind, Error::Kind::lost_peer);
  EXPECT_EQ(seen.what, fmt::format("local rank 0 lost: has handed out nothing T s after the start (job {})", job));
}

TEST(Siblings, AFirstThatEndsIsNamedAtOnce) {
  const std::string job = fresh_job();
  std::optional<SiblingHost> host(std::in_place, job, 2, 0, 10s);
  Sibling sibling(job, 1, 2, 1, 10s);
  host.reset();
  const base::RealClock clock;
  const Trouble seen = trouble_in([&] { sibling.collect(); });
  EXPECT_EQ(seen.kind, Error::Kind::lost_peer);
  EXPECT_EQ(seen.what, fmt::format("local rank 0 lost: ended before it had handed out the set-up (job {})", job));
  EXPECT_LT(clock.now(), 5s);
}

TEST(Siblings, ASiblingKilledWhileWaitingIsNamedAtOnce) {
  const std::string job = fresh_job();
  SiblingHost host(job, 3, 0, 10s);
  const pid_t victim = in_process([&] {
    const Sibling sibling(job, 1, 3, 17, 10s);
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(exit_code(victim), 128 + SIGKILL);
  const base::RealClock clock;
  const Trouble seen = trouble_in([&] { host.ranks(); });
  EXPECT_EQ(seen.kind, Error::Kind::lost_peer);
  EXPECT_EQ(seen.peer, 17);
  EXPECT_EQ(seen.what, "local rank 1 (rank 17) lost: ended before all ranks of this machine were there");
  EXPECT_LT(clock.now(), 5s);
}

TEST(Siblings, ASiblingKilledBeforeItTookItsBundleIsNamedToAll) {
  const std::string job = fresh_job();
  SiblingHost host(job, 3, 0, 10s);
  const pid_t victim = in_process([&] {
    const Sibling sibling(job, 1, 3, 17, 10s);
    ::raise(SIGSTOP);
  });
  Trouble told;
  std::jthread other([&] {
    Sibling sibling(job, 2, 3, 18, 10s);
    told = trouble_in([&] { sibling.collect(); });
  });
  EXPECT_THAT(host.ranks(), ElementsAre(0, 17, 18));
  ::kill(victim, SIGKILL);
  EXPECT_EQ(exit_code(victim), 128 + SIGKILL);
  const Trouble seen = trouble_in([&] { host.hand_out(simple_bundles(3)); });
  EXPECT_EQ(seen.peer, 17);
  EXPECT_THAT(seen.what, HasSubstr("local rank 1 (rank 17) lost: could not be handed its set-up: "));
  other.join();
  EXPECT_EQ(told.what, seen.what);
  EXPECT_EQ(told.peer, 17);
}

TEST(Siblings, AFrozenSiblingIsNamedAtTheDeadline) {
  for (const size_t bytes : {size_t{5}, size_t{4} << 20}) {  // fits into the socket, does not
    const std::string job = fresh_job();
    SiblingHost host(job, 2, 0, 300ms);
    const Sibling frozen(job, 1, 2, 1, 20s);  // never collects
    const Trouble seen = trouble_in([&] { host.hand_out({{}, {std::string(bytes, 'x'), {}}}); });
    EXPECT_EQ(seen.kind, Error::Kind::lost_peer);
    EXPECT_EQ(seen.peer, 1);
    EXPECT_EQ(seen.what, "local rank 1 (rank 1) lost: has not taken its set-up T s after the start");
  }
}

TEST(Siblings, TwoWithTheSameLocalRankAreTheFirstAndARefusal) {
  const std::string job = fresh_job();
  SiblingHost host(job, 3, 0, 10s);
  Sibling first(job, 1, 3, 1, 10s), second(job, 1, 3, 2, 10s);
  Trouble refused;
  std::jthread last([&] {
    refused = trouble_in([&] { second.collect(); });
    EXPECT_EQ(Sibling(job, 2, 3, 2, 10s).collect().bytes, "for 2");
  });
  EXPECT_THAT(host.ranks(), ElementsAre(0, 1, 2));
  std::jthread taker([&] { EXPECT_EQ(first.collect().bytes, "for 1"); });
  host.hand_out(simple_bundles(3));
  last.join();
  EXPECT_EQ(refused.kind, Error::Kind::bad_input);
  EXPECT_EQ(refused.what, fmt::format("local rank 1 runs twice: as process {0} and as process {0} (job {1})", ::getpid(), job));
}

TEST(Siblings, ARefusalExplainsWhoIsMissing) {
  const std::string job = fresh_job();
  SiblingHost host(job, 3, 0, 200ms);
  const Sibling first(job, 1, 3, 1, 10s), second(job, 2, 3, 1, 10s);
  const Trouble seen = trouble_in([&] { host.ranks(); });
  EXPECT_THAT(seen.what, StartsWith("local rank 2 of 3 lost: not there T s after the start"));
  EXPECT_THAT(seen.what, HasSubstr("; refused: rank 1 runs twice, the second time as local rank 2"));
}

TEST(Siblings, TwoFirstsOfOneJobAreRefused) {
  const std::string job = fresh_job();
  const SiblingHost host(job, 2, 0, 10s);
  const Trouble seen = trouble_in([&] { SiblingHost(job, 2, 0, 10s); });
  EXPECT_EQ(seen.kind, Error::Kind::bad_input);
  EXPECT_EQ(seen.what, fmt::format("cannot wait for the ranks of this machine (job {}): another process does so already; does local rank 0 "
                                   "run twice?",
                                   job));
}

TEST(Siblings, UnlikeSizesAreRefusedOnBothSides) {
  const std::string job = fresh_job();
  SiblingHost host(job, 2, 0, 10s);
  Sibling sibling(job, 2, 3, 2, 10s);
  const Trouble seen = trouble_in([&] { host.ranks(); });
  EXPECT_EQ(seen.kind, Error::Kind::bad_input);
  EXPECT_EQ(seen.what, fmt::format("local rank 2 was told of 3 ranks on this machine, local rank 0 of 2: they must agree (job {})", job));
  const Trouble told = trouble_in([&] { sibling.collect(); });
  EXPECT_EQ(told.kind, Error::Kind::bad_input);
  EXPECT_EQ(told.what, seen.what);
}

// --- processes that do not belong -------------------------------------------------------------------------------------------------------

TEST(Siblings, SilentAndNoisyCallersHarmNobody) {
  const std::string job = fresh_job();
  SiblingHost host(job, 2, 0, 10s);
  const sibling::Address address = sibling::address_of(job);
  const File silent = connect_to(address), noisy = connect_to(address);
  { const File gone = connect_to(address); }
  const std::string noise(4096, 'G');
  EXPECT_EQ(::send(noisy.fd(), noise.data(), noise.size(), MSG_NOSIGNAL), 4096);
  const std::jthread other([&] { EXPECT_EQ(Sibling(job, 1, 2, 1, 10s).collect().bytes, "for 1"); });
  EXPECT_THAT(host.ranks(), ElementsAre(0, 1));
  host.hand_out(simple_bundles(2));
  char byte = 0;
  EXPECT_LE(::recv(noisy.fd(), &byte, 1, MSG_DONTWAIT), 0);  // closed
}

TEST(Siblings, ASetUpThatIsTooLongIsRefusedBeforeItIsRead) {
  const std::string job = fresh_job();
  const sibling::Address address = sibling::address_of(job);
  const File listener = sibling::make_socket();
  ASSERT_EQ(::bind(listener.fd(), address.generic(), address.length), 0);
  ASSERT_EQ(::listen(listener.fd(), 8), 0);
  using sibling::Kind;
  const auto answered = [&](const std::vector<std::pair<sibling::Head, std::string>>& packets) {
    Sibling caller(job, 1, 2, 1, 10s);
    const File socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    for (const auto& [head, body] : packets) EXPECT_EQ(sibling::try_send(socket.fd(), head, body), 0);
    return trouble_in([&] { caller.collect(); }).what;
  };
  EXPECT_THAT(answered({{{.kind = Kind::bundle, .bytes = (16 << 20) + 1}, ""}}),
              StartsWith("local rank 0 lost: sent a bad set-up: 16777217 bytes and 0 files, at most 16777216 and 4096 are allowed"));
  EXPECT_THAT(answered({{{.kind = Kind::bundle, .files = ~uint64_t{0}}, ""}}), HasSubstr("0 bytes and 18446744073709551615 files"));
  EXPECT_THAT(answered({{{.kind = Kind::piece}, "early"}}), HasSubstr("sent a bad set-up: out of order"));
  EXPECT_THAT(answered({{{.kind = Kind::bundle, .bytes = 4}, ""}, {{.kind = Kind::piece}, "fiver"}}), HasSubstr("more bytes than it said"));
  EXPECT_THAT(answered({{{.kind = Kind::bundle, .files = 1}, ""}, {{.kind = Kind::files}, "--"}}), HasSubstr("more files than it said"));
  EXPECT_THAT(answered({{{.kind = Kind::bundle, .files = 1}, ""}, {{.kind = Kind::files}, "o"}}), HasSubstr("did not all arrive"));
  EXPECT_THAT(answered({{{.magic = 7}, ""}}), HasSubstr("ended before it had handed out the set-up"));
}

// Runs the body as another user, in a process of its own.
pid_t as_nobody(const std::function<void()>& body) {
  return in_process([&] {
    if (::setuid(65534) != 0) throw std::exception();
    body();
  });
}

TEST(Siblings, OtherUsersAreNotLetIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string job = fresh_job();
  const sibling::Address address = sibling::address_of(job);
  SiblingHost host(job, 2, 0, 300ms);
  const pid_t intruder = as_nobody([&] {
    const File socket = connect_to(address);
    sibling::try_send(socket.fd(), {.kind = sibling::Kind::hello, .local_rank = 1, .local_size = 2, .rank = 1});
    pollfd closed{socket.fd(), POLLIN, 0};
    ::poll(&closed, 1, 5000);
    char byte = 0;
    if (::recv(socket.fd(), &byte, 1, MSG_DONTWAIT) > 0) throw std::exception();
  });
  const Trouble seen = trouble_in([&] { host.ranks(); });
  EXPECT_THAT(seen.what, StartsWith("local rank 1 of 2 lost: not there"));
  EXPECT_EQ(exit_code(intruder), 0);
}

TEST(Siblings, AnotherUsersFirstIsNotBelieved) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string job = fresh_job();
  const sibling::Address address = sibling::address_of(job);
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t squatter = as_nobody([&] {
    const File listener = sibling::make_socket();
    if (::bind(listener.fd(), address.generic(), address.length) != 0 || ::listen(listener.fd(), 8) != 0) throw std::exception();
    if (::write(ready[1], "!", 1) != 1) throw std::exception();
    pause(10s);
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const Trouble seen = trouble_in([&] { Sibling(job, 1, 2, 1, 100ms); });
  EXPECT_EQ(seen.what, fmt::format("local rank 0 lost: not there T s after the start; user 65534 has taken its socket name (job {})", job));
  ::kill(squatter, SIGKILL);
  exit_code(squatter);
  for (const int fd : ready) ::close(fd);
}

}  // namespace
}  // namespace cairn::comm
