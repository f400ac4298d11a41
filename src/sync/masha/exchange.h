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

// A compressor of messages.
struct Compression {
  std::string kind = "none";  // "randk": random elements, scaled up (unbiased); "topk": the largest, the rest stays as a residual
  double density = 1;         // share of the elements that travel
  bool common = false;        // randk: all devices send the same indices
};

// Averages one compressed message of each device over all devices. There is no server: each device owns a range of the elements and acts
// as the server for it. "Up" is from devices to owners (gradient in the ledger), "down" from owners to all (parameter in the ledger).
//
// Random indices are a function of key, iteration and device, so every device knows which indices the others send: only values travel, and
// owners send down only elements that some device sent up.
class MashaExchange {
 public:
  struct Sent {
    bool finite = true;      // false: some message was not finite, and nothing has changed on any device
    double error_ratio = 0;  // |compressed - message| / |message| of this device; 0 if it took no part
  };

  virtual ~MashaExchange() = default;
  // Writes to `mean` the compressed mean of the messages of the devices that take part (by rank in the group), bitwise identical on all
  // devices. Messages of the others are not read. Tensors are float, on the CPU. Collective.
  virtual Sent exchange(int64_t iteration, const at::Tensor& message, const std::vector<bool>& takes_part, const at::Tensor& mean) = 0;
  // Later messages will be `factor` times as large: rescales the residual.
  virtual void rescale(double /*factor*/) {}
  // What a snapshot must hold, by name.
  virtual mesh::NamedTensors state() { return {}; }
};

// MASHA1: randk up, randk or everything down. Unbiased and stateless.
std::unique_ptr<MashaExchange> make_random_exchange(const Compression& up, const Compression& down, comm::Group& peers, int64_t elements,
                                                    const base::Random& random);
// MASHA2: topk up, topk or everything down, with error feedback on devices and owners.
std::unique_ptr<MashaExchange> make_largest_exchange(const Compression& up, const Compression& down, comm::Group& peers, int64_t elements);

}  // namespace cairn::sync
