#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

#include <dlfcn.h>
#include <fmt/format.h>

#include "capstan/base/text.h"
#include "capstan/cli/report/machine_rows.h"
#include "capstan/cli/report/system_files.h"

namespace capstan::cli {
namespace {

// The driver's functions that are needed here, by the types its interface fixes for good. Taken
// from the library at run time: the program also runs where there is no driver.
class Driver {
 public:
  explicit Driver(void* library) : library_(library) {}

  template <typename... Args>
  int call(const char* name, Args... args) const {
    constexpr int kNotFound = 500;  // CUDA_ERROR_NOT_FOUND
    auto* function = reinterpret_cast<int (*)(Args...)>(::dlsym(library_, name));
    return function == nullptr ? kNotFound : function(args...);
  }

  std::string error_text(int code) const {
    const char* text = nullptr;
    if (call("cuGetErrorString", code, &text) != 0 || text == nullptr) return "unknown";
    return text;
  }

 private:
  void* library_;
};

bool nvidia_hardware_is_there() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", error)) {
    const bool nvidia = read_line(entry.path() / "vendor") == "0x10de";
    if (nvidia && read_line(entry.path() / "class").starts_with("0x03")) return true;
  }
  return std::filesystem::exists("/dev/nvidiactl", error);
}

Row no_driver_row() {
  Row row{.section = "gpu", .name = "devices", .value = "none", .number = 0, .unit = "devices"};
  if (nvidia_hardware_is_there()) {
    row.state = RowState::failed;
    row.value = "there is an NVIDIA card, but its driver's libcuda.so.1 is missing";
    row.fix =
        "apt-get install nvidia-driver (a container: start it with the NVIDIA runtime, --gpus all)";
  } else {
    row.state = RowState::missing;
    row.value = "none: ranks train on the CPU";
  }
  return row;
}

Row failed_row(const Driver& driver, std::string_view call, int code) {
  constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
  Row row{.section = "gpu", .name = "devices", .number = 0, .unit = "devices"};
  row.state = code == kNoDevice ? RowState::missing : RowState::failed;
  row.value = fmt::format("{} failed: {}", call, driver.error_text(code));
  row.fix = code == kNoDevice ? "if there is a GPU, check CUDA_VISIBLE_DEVICES and nvidia-smi"
                              : "the driver is installed but does not work: see nvidia-smi and "
                                "dmesg; reload it or restart the machine";
  return row;
}

Row device_row(const Driver& driver, int index) {
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  constexpr int kMinor = 76;
  int device = 0;
  int major = 0;
  int minor = 0;
  std::size_t bytes = 0;
  std::array<char, 256> name{};
  int code = driver.call("cuDeviceGet", &device, index);
  if (code == 0)
    code = driver.call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device);
  if (code == 0) code = driver.call("cuDeviceTotalMem_v2", &bytes, device);
  if (code == 0) code = driver.call("cuDeviceGetAttribute", &major, kMajor, device);
  if (code == 0) code = driver.call("cuDeviceGetAttribute", &minor, kMinor, device);
  Row row{.section = "gpu", .name = fmt::format("device {}", index)};
  if (code != 0) {
    row.state = RowState::failed;
    row.value = driver.error_text(code);
    row.fix = "nvidia-smi and dmesg say more; reset the device (nvidia-smi --gpu-reset)";
    return row;
  }
  row.value = fmt::format("{}, {}, compute capability {}.{}", name.data(),
                          format_bytes(static_cast<std::int64_t>(bytes)), major, minor);
  row.number = static_cast<double>(bytes);
  row.unit = "bytes";
  return row;
}

}  // namespace

std::vector<Row> gpu_rows() {
  // Never closed: the driver has threads of its own once it is initialised.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {no_driver_row()};
  const Driver driver(library);
  if (const int code = driver.call("cuInit", 0U); code != 0) {
    return {failed_row(driver, "cuInit", code)};
  }
  int version = 0;
  int count = 0;
  driver.call("cuDriverGetVersion", &version);
  if (const int code = driver.call("cuDeviceGetCount", &count); code != 0) {
    return {failed_row(driver, "cuDeviceGetCount", code)};
  }
  std::vector<Row> rows = {
      {.section = "gpu",
       .name = "driver",
       .value = fmt::format("for CUDA up to {}.{}", version / 1000, version % 1000 / 10)},
      {.section = "gpu",
       .name = "devices",
       .value = fmt::format("{}", count),
       .number = count,
       .unit = "devices"}};
  for (int index = 0; index < count; ++index) rows.push_back(device_row(driver, index));
  return rows;
}

}  // namespace capstan::cli
