// Rows from each rank of a group to each other one, whose number the receivers do not know.
//
// The count of the rows travels in front of them, and no rank waits for a count before it sends: an exchange takes one trip, where an
// all-gather of counts and an uneven all-to-all take two.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/label.h"
#include "comm/work.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

// One exchange. All ranks of the group start and end their exchanges in the same order, and use the group for nothing else.
class RowMessages {
 public:
  // Sends parts[i], bytes (uint8) on the CPU, to rank i; a part may be empty or undefined, and several may be one tensor. That of this rank
  // stays here.
  RowMessages(comm::Group& group, std::vector<at::Tensor> parts, comm::Purpose purpose, std::string what);
  // The parts for this rank, by sender. Waits; call it once.
  std::vector<at::Tensor> receive();

 private:
  comm::Group* group_;
  comm::Purpose purpose_;
  std::string what_;
  std::vector<at::Tensor> parts_;
  std::vector<comm::Work> sent_;
};

}  // namespace cairn::parallel
