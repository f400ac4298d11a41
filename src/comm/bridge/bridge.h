#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/link_model.h"
#include "comm/net/key.h"
#include "comm/rendezvous/rendezvous.h"

namespace cairn::comm {

struct BridgeOptions {
  int site = 0;   // this site's number
  int sites = 1;  // how many there may be at most
  Key key{};      // a caller that does not know it is refused
  // Where this site listens: an address of this machine and a port (0: the system chooses).
  std::string address = "127.0.0.1";
  std::string known_as = {};  // the address under which others reach it; empty: `address`
  uint16_t port = 0;
  std::vector<RendezvousEndpoint> endpoints = {};                  // where some other site may be found
  std::string config_fingerprint = {};                             // one setting per line; a site with another fingerprint is refused
  std::chrono::nanoseconds lost_after = std::chrono::seconds(10);  // a site that cannot be reached for this long is lost
  // A connection on which nothing arrives for this long is closed and made again. A slow link is not silent: every byte counts.
  std::chrono::nanoseconds silence_max = std::chrono::seconds(5);
  // The number of this start; 0: from the clock. A site whose clock went back takes the next number above those that others remember.
  uint64_t incarnation = 0;
  int64_t message_bytes_max = int64_t{1} << 32;
  std::optional<LinkModel> links = {};                // slows messages down, for experiments; sites take the place of ranks
  std::function<void(const std::string&)> tell = {};  // reports who came and who was refused; called by the bridge's thread
};

// Messages between sites (islands). A site is a world of its own that may start, stop and restart while the others work.
//
// All sites that know each other are connected by TCP with TLS. Messages from one site to another arrive in order and at most once. A
// broken connection is made again without losing or repeating a message; a site that stays away for longer than `lost_after` is lost, and
// with it the messages that wait for it. A thread of the bridge moves all messages. Any thread may call the methods.
class Bridge {
 public:
  struct Message {
    int from = 0;
    uint64_t incarnation = 0;  // the sender's
    std::vector<std::byte> body;
  };

  explicit Bridge(BridgeOptions options);
  ~Bridge();  // waits up to 10 s until the other sites have all messages, then says goodbye
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  int site() const;
  int sites() const;
  uint16_t port() const;
  // The number of a site's current start: higher after every restart; 0: the site is not here. This site's own number may rise until the
  // first other site is here.
  uint64_t incarnation(int site) const;
  std::string refusal() const;  // why another site refused this one; empty: none did

  // Sends to that incarnation of the site. Does nothing if the incarnation is over.
  void send(int to, uint64_t incarnation, std::vector<std::byte> body);
  std::optional<Message> next();  // a message that has arrived; never waits
  // Returns when a message arrives, when a site comes or goes (since the last next()), or after `most`.
  void wait(std::chrono::nanoseconds most);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::comm
