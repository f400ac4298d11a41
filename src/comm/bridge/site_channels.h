#pragma once
// What travels between sites, without input or output: sequence numbers, acknowledgements, incarnations, reachability, relays. The owner
// (Bridge, or a simulation) makes streams, tells the time, and writes what next_frame() gives. Used by one thread. No clock, no randomness.
//
// Rules for the owner
//   1. Time never goes back. All times are on one clock of the owner.
//   2. A stream connects two sites, both ways, in order and without loss until it closes. There is at most one with each site. opened()
//      comes after both sides have authenticated and said their incarnations; if it returns false, the owner closes the stream.
//   3. Frames that arrive on a stream are passed to arrived() in their order. heard() reports bytes of a frame that is not complete
//      yet, and the origin of that frame as far as it is known (else: the site itself).
//   4. A frame that next_frame(site) gives is written on the stream with that site, or that stream is closed. After any input, and at
//      ask_again(site), there may be a next frame.
//   5. The owner closes the streams that silent() names, then calls closed(). It makes streams again whenever it can.
//   6. Each incarnation of a site has a higher number than those before it. renew() begins the next one; all streams count as closed then.
//
// What it promises
//   - Messages from one incarnation of a site to one incarnation of another arrive in the order of send(), each at most once. Each arrives
//     if both incarnations last and, from some time on, a stream or a path through one relay lasts long enough.
//   - No message is delivered to another incarnation than the one it was sent to.
//   - reachable(site): the site was heard within `lost_after`, directly or through a relay, and has not said goodbye. send() to a site that
//     is not reachable queues nothing. What was queued before stays, and the pair goes on where it was when the site is heard again.
//
// Paths. The path to a site is its stream. A site without a stream for `relay_after` is reached through the lowest site that has a stream
// with both: direct heartbeats list the sender's streams, each with a number that is new whenever the stream is. A path is therefore
//
//   (number of the own stream to the first hop, the relay's number of its stream to the target; 0: direct)
//
// and writing begins again at the first message that is not acknowledged whenever that pair of numbers changes. The receiver takes a
// message only if its number is the next one, so frames that were lost, or came twice on two paths, change nothing. Messages wait until the
// target has said that it knows this incarnation: before that it may still hold a stream of the one before, and drop them. On a relayed
// path at most `relay_window` bytes (or one message) are unacknowledged, which bounds the relay's memory. A relay forwards frames in order,
// drops them where it has no stream to the target, and forwards no frame that was forwarded before.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "comm/bridge/site_frame.h"

namespace cairn::comm {

// Mistakes that a test can plant, as data, to see that it finds them.
struct SiteChannelFaults {
  bool drop_relayed = false;            // says that it relays, and drops every frame
  bool accept_any_incarnation = false;  // takes frames to and from earlier incarnations
  bool resume_behind_path = false;      // does not write again what the path before may have lost
};

class SiteChannels {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  struct Options {
    int site = 0, sites = 1;
    uint64_t incarnation = 1;                           // of this site; above 0
    Nanoseconds lost_after = std::chrono::seconds(10);  // a site that is not heard for this long is unreachable
    Nanoseconds silence_max = std::chrono::seconds(5);  // a stream on which nothing arrives for this long is closed
    Nanoseconds relay_after = std::chrono::seconds(1);  // a site without a stream for this long is reached through a relay
    int64_t relay_window = int64_t{16} << 20;           // bytes
    SiteChannelFaults faults = {};
  };
  struct Message {
    int from = 0;
    uint64_t incarnation = 0;  // the sender's
    SiteFrame::Body body;
  };
  // Bytes of messages that this site forwarded.
  struct Relayed {
    int from = 0, to = 0;
    int64_t bytes = 0;
  };

  SiteChannels(Options options, Nanoseconds now);

  // Streams. `incarnation` is what the other side said. False: that incarnation is over, close the stream.
  bool opened(int site, uint64_t incarnation, Nanoseconds now);
  void closed(int site, Nanoseconds now);
  void heard(int site, int origin, Nanoseconds now);
  void arrived(int site, SiteFrame frame, Nanoseconds now);
  std::vector<int> silent(Nanoseconds now) const;

  // Queues a message to that incarnation of a site, which may leave at `leaves` (slow links are simulated so). False: nothing is queued,
  // because the site is not reachable or has another incarnation.
  bool send(int to, uint64_t incarnation, SiteFrame::Body body, Nanoseconds leaves, Nanoseconds now);
  std::optional<SiteFrame> next_frame(int site, Nanoseconds now);
  Nanoseconds ask_again(int site, Nanoseconds now) const;

  std::vector<Message> take_messages();
  std::vector<Relayed> take_relayed();

  // Begins the next incarnation of this site: all pairs begin anew.
  void renew(uint64_t incarnation, Nanoseconds now);
  // From now on every site gets a goodbye as soon as it has acknowledged all messages.
  void leave();
  bool has_left(Nanoseconds now) const;  // all reachable sites have all messages, and the goodbye if there is a path to them

  uint64_t incarnation() const { return options_.incarnation; }
  uint64_t incarnation(int site) const { return at(site).incarnation; }  // the last known one; 0: never seen
  bool said_bye(int site) const { return at(site).ended; }               // that incarnation
  bool reachable(int site, Nanoseconds now) const;
  bool is_open(int site) const { return at(site).stream != 0; }
  Nanoseconds heard_at(int site) const { return at(site).stream_heard; }  // something arrived on the stream
  // The first hop to a site: itself, or the relay; -1: there is no path.
  int first_hop(int site, Nanoseconds now) const { return path_to(site, now).via; }

 private:
  struct Path {
    int via = -1;         // the first hop; -1: there is none
    uint64_t stream = 0;  // own stream to the first hop
    uint64_t onward = 0;  // the relay's stream to the target; 0: direct
    bool operator==(const Path&) const = default;
  };
  struct Outgoing {
    uint64_t number = 0;
    Nanoseconds leaves{};
    SiteFrame::Body body;
  };
  // What this site knows of another one.
  struct Channel {
    uint64_t incarnation = 0;  // 0: never seen
    bool ended = false;        // this incarnation said goodbye
    Nanoseconds heard{};       // directly or through a relay
    // The pair: lasts as long as both incarnations.
    std::deque<Outgoing> outgoing;  // not acknowledged yet
    uint64_t sent = 0;              // number of the next message to send
    uint64_t received = 0;          // number of the next message to receive
    bool confirmed = false;         // the site has said that it knows this incarnation
    bool ack_due = false, bye_sent = false;
    // Writing on a path.
    Path path;
    uint64_t written = 0;        // number of the next message to write on it
    int64_t unacknowledged = 0;  // bytes written on it
    Nanoseconds heartbeat_at{};
    // The stream with this site, if there is one.
    uint64_t stream = 0;  // its number; 0: none
    uint64_t stream_incarnation = 0;
    Nanoseconds stream_heard{}, away_since{};
    std::vector<uint64_t> onward;   // by site: the number of that site's stream to it; 0: none
    std::deque<SiteFrame> relayed;  // frames of others to this site
    int turn = 0;                   // which site's frames were written last
  };

  Channel& at(int site) { return channels_[static_cast<size_t>(site)]; }
  const Channel& at(int site) const { return channels_[static_cast<size_t>(site)]; }
  bool is_other(int site) const { return site >= 0 && site < options_.sites && site != options_.site; }
  void begin_pair(Channel& channel, uint64_t incarnation);
  void streams_changed(Nanoseconds now);
  Path path_to(int site, Nanoseconds now) const;
  void follow_path(int site, Nanoseconds now);
  void relay(int site, SiteFrame frame);
  void receive(int site, SiteFrame& frame, Nanoseconds now);
  void take(int from, SiteFrame& frame);
  void acknowledge(Channel& channel, uint64_t received);
  SiteFrame frame_to(int site, SiteFrame::Kind kind);
  const Outgoing* next_message(const Channel& channel) const;
  std::optional<SiteFrame> control_frame(int via, int target, Nanoseconds now);
  std::optional<SiteFrame> message_frame(int via, int target, Nanoseconds now);
  std::optional<SiteFrame> relayed_frame(int via);

  Options options_;
  std::vector<Channel> channels_;  // by site; this one's own is unused
  uint64_t streams_ = 0;           // opened so far
  std::vector<Message> messages_;
  std::vector<Relayed> relayed_;
  bool leaving_ = false;
};

}  // namespace cairn::comm
