#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "mesh/named_tensor.h"

namespace cairn::comm {
class Group;
}

namespace cairn::sync {

// What lets only some elements of a message through.
struct Compression {
  std::string kind = "none";  // "randk": random ones, scaled up; "topk": the largest, the rest is owed
  double density = 1;         // the share that travels
  bool common = false;        // randk: all devices let the same places through
};

// How the devices' differences become their mean on all of them. There is no server: each device owns a range of the elements and plays
// the server for it. Up is what devices send to owners (booked as gradient), down what owners send to all (booked as parameter).
//
// Random places are a function of key, iteration and device, so everybody knows who lets what through: only values travel, and of
// what owners send only the elements that somebody let through.
class MashaExchange {
 public:
  struct Sent {
    bool finite = true;      // else nothing has changed, on any device
    double error_ratio = 0;  // |what travelled - message| / |message| of this device; 0 where it took no part
  };

  virtual ~MashaExchange() = default;
  // `mean` becomes the compressed mean of the messages of the devices that take part (by rank in the group), the same bits everywhere.
  // The others' messages are not read. Both are float on the CPU. Collective.
  virtual Sent exchange(int64_t iteration, const at::Tensor& message, const std::vector<bool>& takes_part, const at::Tensor& mean) = 0;
  // The messages that come will be `factor` times as large as those so far: what is owed follows.
  virtual void rescale(double /*factor*/) {}
  // What must survive a restart.
  virtual mesh::NamedTensors state() { return {}; }
};

// Random places up and (or all) down: unbiased, keeps nothing. MASHA1.
std::unique_ptr<MashaExchange> make_random_exchange(const Compression& up, const Compression& down, comm::Group& peers, int64_t elements,
                                                    const base::Random& random);
// The largest up and (or all) down, with error feedback on both ends. MASHA2.
std::unique_ptr<MashaExchange> make_largest_exchange(const Compression& up, const Compression& down, comm::Group& peers, int64_t elements);

}  // namespace cairn::sync
