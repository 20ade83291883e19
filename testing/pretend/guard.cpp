// A device guard of type CUDA for a torch that was built without CUDA: it knows a number of devices and the current
// one of each thread, and does nothing else. torch asks it for the device of tensors that say "cuda:N".
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

thread_local c10::DeviceIndex current = 0;
c10::DeviceIndex devices = 1;

c10::Stream default_stream(c10::Device device) {
  return c10::Stream(c10::Stream::DEFAULT, device);
}

struct PretendGuard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(c10::DeviceType::CUDA, current); }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return default_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return default_stream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};

PretendGuard guard;
c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);

}  // namespace

extern "C" {
int pretend_device() { return current; }
void pretend_set_device(int index) { current = static_cast<c10::DeviceIndex>(index); }
void pretend_set_count(int count) { devices = static_cast<c10::DeviceIndex>(count); }
}
