// A CUDA device without memory or kernels, for a CPU build of torch: what autograd and scaled_dot_product_attention
// ask of a device while fake tensors run. Loaded before torch reads the registry of hooks.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
const Device kFirst(c10::DeviceType::CUDA, 0);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return kFirst; }
  Device getDevice() const override { return kFirst; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, kFirst); }
  Stream getNewStream(Device, int = 0) const override { return getStream(kFirst); }
  Stream exchangeStream(Stream) const noexcept override { return getStream(kFirst); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
};

// Flash attention in half precision without a mask, up to 256 wide; else memory-efficient attention, unless heads are
// grouped; else plain operators. As the default order of backends on CUDA does.
int64_t attention(const at::Tensor& query, const at::Tensor&, const at::Tensor& value,
                  const std::optional<at::Tensor>& mask, double, bool, std::optional<double>, bool grouped) {
  const bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  const auto width = query.sym_size(-1).maybe_as_int();
  const auto other = value.sym_size(-1).maybe_as_int();
  const bool masked = mask.has_value() && mask->defined();
  if (half && !masked && width && width == other && *width <= 256) return 1;
  return grouped || (!half && query.scalar_type() != at::kFloat) ? 0 : 2;
}
} // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks);
namespace native {
const RegisterCUDADispatch<_fused_sdp_choice_stub_DECLARE_DISPATCH_type> registered(_fused_sdp_choice_stub, attention);
}
} // namespace at
