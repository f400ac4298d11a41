#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/bridge/incarnation_file.h"
#include "comm/bridge/site_channels.h"
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
  std::chrono::nanoseconds lost_after = std::chrono::seconds(10);  // a site that is not heard of for this long is unreachable
  // A connection on which nothing arrives for this long is closed and made again. A slow link is not silent: every byte counts. A fifth of
  // it after a connection is gone, messages take a way through another site.
  std::chrono::nanoseconds silence_max = std::chrono::seconds(5);
  NextIncarnation incarnations = {};  // numbers of this site's incarnations, better from a file; empty: in memory
  int64_t message_bytes_max = int64_t{1} << 32;
  std::optional<LinkModel> links = {};                // slows messages down, for experiments; sites take the place of ranks
  std::function<void(const std::string&)> tell = {};  // reports who came and who was refused; called by the bridge's thread
  std::function<bool(int site)> is_cut = {};          // for tests: links that do not work now; called by the bridge's thread
};

// Messages between sites (islands). A site is a world of its own that may start, stop and restart while the others work.
//
// All sites that know each other are connected by TCP with TLS. Messages from one incarnation of a site to one of another arrive in order
// and at most once. A broken connection is made again without losing or repeating a message, and where two sites have no connection,
// a third one relays. A site that is not heard of for `lost_after` is unreachable until it is heard again; nothing is given up. A thread of
// the bridge moves all messages. Any thread may call the methods. The rules are in site_channels.h.
class Bridge {
 public:
  struct Message {
    int from = 0;
    uint64_t incarnation = 0;  // the sender's
    std::vector<std::byte> body;
  };

  explicit Bridge(BridgeOptions options);
  ~Bridge();  // waits up to 10 s until the reachable sites have all messages, then says goodbye
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  int site() const;
  int sites() const;
  uint16_t port() const;
  // The last known number of a site's start, higher after every restart; 0: the site was never here. This site's own number rises where
  // others remember a later start of it, and with renew().
  uint64_t incarnation(int site) const;
  // Whether the site was heard of within `lost_after`, directly or through another one, and has not said goodbye.
  bool reachable(int site) const;
  std::string refusal() const;  // why another site refused this one; empty: none did

  // Sends to that incarnation of the site. False: nothing is sent, because the site is unreachable or has another incarnation. A site that
  // becomes unreachable within the next tenth of a second may miss the message too.
  bool send(int to, uint64_t incarnation, std::vector<std::byte> body);
  std::optional<Message> next();  // a message that has arrived; never waits
  // What this site has forwarded for others since the last call.
  std::vector<SiteChannels::Relayed> take_relayed();
  // Bytes that this site has sent on its connections so far, as TCP counts them: messages of others that it forwards, headers, encryption
  // and handshakes included. 0 where the system does not say.
  int64_t socket_bytes() const;
  // Takes the next incarnation: all pairs begin anew, messages that have not been read are dropped, all connections are made again. Throws
  // if the number cannot be stored.
  void renew();
  // Returns when a message arrives, when a site comes or goes (since the last next()), or after `most`.
  void wait(std::chrono::nanoseconds most);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::comm
