// The keeper process: sockets, connections with other keepers, and the end of its agent_pipe around the rules of redundancy.h. One thread does
// everything; another one waits for messages of other keepers and wakes it.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <fstream>
#include <list>
#include <memory>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "comm/bridge/bridge.h"
#include "elastic/keeper.h"
#include "elastic/packet.h"
#include "elastic/redundancy.h"

namespace cairn::elastic {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

constexpr auto kAnswerLimit = std::chrono::seconds(2);  // to put an answer into a rank's socket
constexpr auto kLostAfter = std::chrono::seconds(5);    // a keeper that is not heard of for so long is gone
constexpr auto kTurn = std::chrono::milliseconds(200);  // how often the process looks at its clock
constexpr double kBurst_s = 0.05;                       // a rate limit lets so much of a second pass at once

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

comm::Key key_from(const std::string& hex) {
  comm::Key key{};
  if (hex.size() != 2 * key.size()) base::fail_input("keeper: a key of {} digits", hex.size());
  for (size_t i = 0; i < key.size(); ++i) {
    const auto [end, error] = std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, key[i], 16);
    if (error != std::errc{} || end != hex.data() + 2 * i + 2) base::fail_input("keeper: a key that is no hexadecimal number");
  }
  return key;
}

// The connections with the other keepers of a group, and a thread that waits for them.
class KeeperLinks {
 public:
  KeeperLinks(comm::BridgeOptions options, double bytes_per_s, int wake)
      : bridge_(std::move(options)), bytes_per_s_(bytes_per_s), wake_(wake), waiter_([this] { wait(); }) {}
  ~KeeperLinks() {
    ended_ = true;
    {
      const std::scoped_lock lock(mutex_);
      seen_ = true;
    }
    changed_.notify_all();
    waiter_.join();
  }
  uint16_t port() const { return bridge_.port(); }

  void send(int site, Bytes message) { queue_.emplace_back(site, std::move(message)); }
  // Hands messages to the bridge as far as their receivers are there and the rate allows it. True: some wait.
  bool flush() {
    const double now = base::seconds(clock_.now());
    if (bytes_per_s_ > 0) allowed_ = std::min(allowed_ + (now - last_) * bytes_per_s_, bytes_per_s_ * kBurst_s);
    last_ = now;
    std::vector<bool> absent(static_cast<size_t>(bridge_.sites()), false);
    for (auto one = queue_.begin(); one != queue_.end();) {
      const auto site = static_cast<size_t>(one->first);
      if (bytes_per_s_ > 0 && allowed_ <= 0) break;
      absent[site] = absent[site] || !bridge_.reachable(one->first);
      const auto bytes = static_cast<double>(one->second.size());
      if (absent[site] || !bridge_.send(one->first, bridge_.incarnation(one->first), one->second)) {
        absent[site] = true;  // those behind it wait too: they arrive in order
        ++one;
        continue;
      }
      allowed_ -= bytes;
      one = queue_.erase(one);
    }
    return !queue_.empty();
  }
  std::optional<comm::Bridge::Message> next() { return bridge_.next(); }
  // The main thread has read all messages.
  void continue_waiting() {
    {
      const std::scoped_lock lock(mutex_);
      seen_ = true;
    }
    changed_.notify_all();
  }

 private:
  void wait() {
    while (!ended_) {
      bridge_.wait(kTurn);
      {
        const std::scoped_lock lock(mutex_);
        seen_ = false;
      }
      const uint64_t one = 1;
      [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kTurn, [this] { return seen_ || ended_; });
    }
  }

  base::RealClock clock_;
  comm::Bridge bridge_;
  double bytes_per_s_, allowed_ = 0, last_ = 0;
  std::list<std::pair<int, Bytes>> queue_;
  int wake_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool seen_ = false;
  std::thread waiter_;
};

class KeeperProcess {
 public:
  KeeperProcess(int door, int agent_pipe, Nanoseconds orphan_limit, std::string address)
      : door_(door),
        agent_pipe_(agent_pipe),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        orphan_limit_(orphan_limit),
        address_(std::move(address)),
        id_(base::random_name()) {}

  int run() {
    while (!over()) {
      std::vector<pollfd> files{
          {closed_ ? -1 : door_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}, {orphaned_ ? -1 : agent_pipe_.fd(), POLLIN, 0}};
      for (const File& client : clients_) files.push_back({client.fd(), POLLIN, 0});
      const bool waiting = links_ && links_->flush();
      ::poll(files.data(), files.size(), waiting ? 2 : static_cast<int>(kTurn / std::chrono::milliseconds(1)));
      if (files[2].revents) look_at_agent_pipe();
      if (files[0].revents) look_at_door();
      closed_ = closed_ || (files[0].revents & POLLHUP);  // nobody is left who could call
      if (files[1].revents) take_messages();
      for (size_t i = 3; i < files.size(); ++i)
        if (files[i].revents) serve(clients_[i - 3]);
      std::erase_if(clients_, [](const File& client) { return client.fd() < 0; });
    }
    return 0;
  }

 private:
  bool over() const { return ended_ || (orphaned_ && clock_.now() > *orphaned_ + orphan_limit_); }

  // The agent says that the run is over, or is gone without a word.
  void look_at_agent_pipe() {
    char said = 0;
    if (::read(agent_pipe_.fd(), &said, 1) == 1)
      ended_ = true;
    else
      orphaned_ = clock_.now();
  }

  void look_at_door() {
    Packet packet;
    while (receive_packet(door_.fd(), packet) == Received::packet)
      if (packet.files.size() == 1) clients_.push_back(std::move(packet.files.front()));
  }

  void take_messages() {
    uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(wake_.fd(), &count, sizeof count);
    while (links_) {
      const std::optional<comm::Bridge::Message> message = links_->next();
      if (!message) break;
      redundancy_.arrived(message->from, message->body);
    }
    if (links_) links_->continue_waiting();
  }

  void serve(File& client) {
    while (client.fd() >= 0) {
      Packet packet;
      const Received received = receive_packet(client.fd(), packet);
      if (received == Received::nothing) return;
      if (received == Received::end) {
        client = File();
        return;
      }
      Answer answer;
      try {
        answer = handle(packet.body);
      } catch (const Error& error) {
        answer = {{{"error", error.what()}}, {}};
      } catch (const base::Json::exception& error) {
        answer = {{{"error", error.what()}}, {}};
      }
      if (!packet.body.contains("number")) continue;
      answer.body["number"] = packet.body["number"];
      if (send_packet(client.fd(), answer.body, answer.files, kAnswerLimit) != 0) client = File();
    }
  }

  struct Answer {
    base::Json body = base::Json::object();
    std::vector<int> files = {};
  };

  Answer handle(const base::Json& request) {
    const std::string op = request.at("op").get<std::string>();
    if (op == "status") return {status(), {}};
    if (op == "open") return {open(request), {}};
    const auto vault = [&] { return request.at("vault").get<std::string>(); };
    const auto serial = [&] { return request.at("serial").get<uint64_t>(); };
    if (op == "layout") {
      const Vault& made = redundancy_.lay_out(vault_spec_from(request.at("spec")));
      return {base::Json::object(), {made.data[0].fd(), made.data[1].fd()}};
    }
    if (op == "buffers") {
      const Vault* const found = redundancy_.find(vault());
      if (!found) base::fail_input("keeper: no such layout");
      return {{{"bytes", found->spec.code.data_bytes}}, {found->data[0].fd(), found->data[1].fd()}};
    }
    if (op == "begin") return {{{"buffer", redundancy_.begin(vault(), serial(), request.at("step").get<int64_t>())}}, {}};
    if (op == "filled") {
      redundancy_.filled(vault(), serial(), request.at("rank").get<int>());
      return {};
    }
    if (op == "in_flight") return {{{"in_flight", redundancy_.in_flight(vault())}}, {}};
    if (op == "verify") {
      const Redundancy::Damage damage = redundancy_.verify(vault(), serial());
      return {{{"data", damage.data}, {"parity", damage.parity}}, {}};
    }
    if (op == "rebuild") {
      redundancy_.rebuild(rebuild_order_from(request.at("order")));
      return {};
    }
    if (op == "progress") {
      const RebuildProgress now = redundancy_.progress(request.at("id").get<uint64_t>());
      return {{{"done", now.done}, {"failure", now.failure}, {"received", now.received}, {"expected", now.expected}}, {}};
    }
    if (op == "read") {
      const Segment* const data = redundancy_.data_of(vault(), request.at("node").get<int>(), serial());
      if (!data) base::fail_input("keeper: this node does not have that data");
      return {{{"bytes", data->bytes()}}, {data->fd()}};
    }
    if (op == "adopt") {
      redundancy_.adopt(vault(), serial());
      return {};
    }
    base::fail_input("keeper: \"{}\" is no request", op);
  }

  base::Json status() const {
    base::Json vaults = base::Json::array();
    for (const Vault* vault : redundancy_.vaults()) {
      base::Json versions = base::Json::array();
      for (const Version& one : vault->versions)
        if (one.state != Version::State::empty)
          versions.push_back({{"serial", one.serial}, {"step", one.step}, {"state", word_of(one.state)}, {"whole", one.whole()}});
      vaults.push_back({{"spec", to_json(vault->spec)}, {"versions", std::move(versions)}});
    }
    base::Json guests = base::Json::array();
    for (const auto& [vault, node, serial] : redundancy_.guests()) guests.push_back({vault, node, serial});
    return {{"keeper", id_},       {"pid", ::getpid()},           {"machine", boot_id()},
            {"address", address_}, {"vaults", std::move(vaults)}, {"guests", std::move(guests)}};
  }

  // A new group of keepers. The first one of it listens; the others find each other through it.
  base::Json open(const base::Json& request) {
    const int site = request.at("site").get<int>(), sites = request.at("sites").get<int>();
    const auto epoch = request.at("epoch").get<uint64_t>();
    if (links_) {  // saying goodbye may take a while
      retired_.emplace_back([old = std::exchange(links_, nullptr)]() mutable { old.reset(); });
    }
    uint16_t port = 0;
    if (sites > 1) {
      comm::BridgeOptions options{.site = site, .sites = sites, .key = key_from(request.at("key").get<std::string>())};
      options.address = address_;
      options.known_as = address_;
      options.lost_after = kLostAfter;
      options.config_fingerprint = "keepers\n";
      if (const std::string at = request.at("endpoint").get<std::string>(); !at.empty())
        options.endpoints = {comm::parse_rendezvous_endpoint(at)};
      links_ = std::make_shared<KeeperLinks>(std::move(options), request.at("rate").get<double>(), wake_.fd());
      port = links_->port();
    }
    redundancy_.join(epoch, site, sites,
                     [this](int to, Bytes message) {
                       if (links_) links_->send(to, std::move(message));
                     },
                     {});
    return {{"port", port}, {"address", address_}};
  }

  File door_, agent_pipe_, wake_;
  Nanoseconds orphan_limit_;
  std::string address_, id_;
  base::RealClock clock_;
  std::vector<File> clients_;
  Redundancy redundancy_;
  std::shared_ptr<KeeperLinks> links_;
  std::vector<std::thread> retired_;
  std::optional<Nanoseconds> orphaned_;
  bool ended_ = false, closed_ = false;

 public:
  ~KeeperProcess() {
    for (std::thread& one : retired_) one.detach();  // the process ends
  }
};

}  // namespace

int keeper_main(const std::string& setting) {
  int door = -1, agent_pipe = -1;
  int64_t orphan_ms = 0;
  const char* const end = setting.data() + setting.size();
  const auto [after_door, e1] = std::from_chars(setting.data(), end, door);
  if (e1 != std::errc{} || after_door == end) base::fail_input("{} = {}: cairn's agent sets it, nobody else", kKeeperVariable, setting);
  const auto [after_pipe, e2] = std::from_chars(after_door + 1, end, agent_pipe);
  if (e2 != std::errc{} || after_pipe == end) base::fail_input("{} = {}: cairn's agent sets it, nobody else", kKeeperVariable, setting);
  const auto [after_orphan, e3] = std::from_chars(after_pipe + 1, end, orphan_ms);
  if (e3 != std::errc{} || after_orphan == end) base::fail_input("{} = {}: cairn's agent sets it, nobody else", kKeeperVariable, setting);
  for (const int fd : {door, agent_pipe}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::prctl(PR_SET_NAME, "cairn keeper");
  KeeperProcess keeper(door, agent_pipe, std::chrono::milliseconds(orphan_ms), std::string(after_orphan + 1, end));
  return keeper.run();
}

}  // namespace cairn::elastic
