// Many adapters of pools beside one model, as the proof of MoS serves them, on a CPU or a GPU.
#pragma once
#include <cstdint>
#include <filesystem>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "model/decoder/adapter_shape.h"
#include "model/decoder/shape.h"

namespace cairn::base {
class Log;
}

namespace cairn::study {

class Findings;
struct ProofOptions;

// How fast a batch is continued in which each row has an adapter of its own, and one in which all rows have the same.
struct ServingTrial {
  model::DecoderShape shape;  // random weights
  model::AdapterShape adapter;
  int64_t users = 16, prompt = 64, tokens = 128;
  c10::Device device = c10::DeviceType::CPU;
  c10::ScalarType dtype = c10::ScalarType::Float;
  uint64_t seed = 1;
};
struct ServingRates {
  double one = 0, several = 0;  // tokens per second, of the whole batch
};
ServingRates serving_rates(const ServingTrial& trial);

// Memory and answers of many adapters beside a trained model.
void prove_mos_serving(const ProofOptions& options, const std::filesystem::path& base, const model::AdapterShape& adapter,
                       Findings& findings, base::Log& log);

}  // namespace cairn::study
