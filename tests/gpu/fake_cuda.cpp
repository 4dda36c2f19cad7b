// A CUDA device for a CPU build of torch: it exists, has a default stream, and computes nothing.
// With FakeTensorMode, programs run on it with the devices, dtypes and dispatch of CUDA, without numbers.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10 {
namespace impl {
struct FakeGuard : public NoOpDeviceGuardImpl<DeviceType::CUDA> {
  FakeGuard() {}
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Stream defaultStream() const { return Stream(Stream::DEFAULT, getDevice()); }
  Stream getStream(Device) const noexcept override { return defaultStream(); }
  Stream getDefaultStream(Device) const override { return defaultStream(); }
  Stream exchangeStream(Stream) const noexcept override { return defaultStream(); }
};
C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)
}  // namespace impl
}  // namespace c10

namespace at {
struct FakeHooks : public CUDAHooksInterface {
  FakeHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return 91900; }
  long versionRuntimeCuDNN() const override { return 91900; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", FakeHooks);
}  // namespace at
