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
  int site = 0;   // which this one is
  int sites = 1;  // how many there may be
  Key key{};      // who does not know it is refused
  // Where this site is called: an address of this machine, and where others reach that (empty: the address); port 0: the system chooses.
  std::string address = "127.0.0.1";
  std::string known_as = {};
  uint16_t port = 0;
  std::vector<RendezvousEndpoint> endpoints = {};  // where some other site may be found
  std::string config_fingerprint = {};  // what must be the same on all sites, a line for each thing; those that differ are refused
  std::chrono::nanoseconds patience = std::chrono::seconds(10);  // for a site that cannot be reached, before it counts as lost
  int64_t message_bytes_max = int64_t{1} << 32;
  std::optional<LinkModel> links = {};                // to try out slow ones; sites in place of ranks
  std::function<void(const std::string&)> tell = {};  // who came, who was refused. Called by a thread of the bridge's
};

// Letters between sites that are worlds of their own: each may come, go and come again while the others are at work. All sites that know
// each other are connected, by TCP in TLS. A connection that breaks is made again, and nothing is lost or said twice by that; a site that
// stays away for longer than `patience` is lost. Letters from one site to another come in order. Moved by a thread of its own.
class Bridge {
 public:
  struct Message {
    int from = 0;
    uint64_t incarnation = 0;  // of the sender: see life()
    std::vector<std::byte> body;
  };

  explicit Bridge(BridgeOptions options);
  ~Bridge();  // says goodbye, when all that was sent is there (or not for long)
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  int site() const;
  int sites() const;
  uint16_t port() const;
  // Which of its lives a site is in: another one after each start. 0: not here (yet, or any more).
  uint64_t incarnation(int site) const;
  std::string refusal() const;  // why another site would not have this one; empty: none refused

  // To that life of the site; nothing happens where it is over.
  void send(int to, uint64_t incarnation, std::vector<std::byte> body);
  std::optional<Message> next();  // what has come, without waiting
  // Until something has come that was not there at the last call, or somebody came or went, or this much time has passed.
  void wait(std::chrono::nanoseconds most);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::comm
