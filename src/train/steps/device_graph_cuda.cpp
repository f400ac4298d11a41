#include "train/steps/device_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace cairn::train {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  void capture(const std::function<void()>& work) override {
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();                           // a graph allocates its own memory: free what passes used
    const c10::cuda::CUDAStreamGuard apart(c10::cuda::getStreamFromPool());  // the default stream cannot be captured
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();            // ends the capture of the stream
      } catch (const std::exception&) {  // the first exception is reported
      }
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<DeviceGraph> make_cuda_graph() { return std::make_unique<CudaGraph>(); }

}  // namespace cairn::train
