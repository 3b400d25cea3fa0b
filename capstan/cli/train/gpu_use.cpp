#include "capstan/cli/train/gpu_use.h"

#include <charconv>
#include <cstdlib>
#include <vector>

#include <dlfcn.h>

#include "capstan/base/text.h"

namespace capstan::cli::train {
namespace {

// The few functions we use, as the driver's interface declares them; 0 is success.
struct Nvml {
  struct Utilization {
    unsigned gpu;  // percent
    unsigned memory;
  };
  int (*init)() = nullptr;
  int (*by_index)(unsigned index, void** device) = nullptr;
  int (*by_uuid)(const char* uuid, void** device) = nullptr;
  int (*utilization)(void* device, Utilization* result) = nullptr;
};

template <typename Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The library stays loaded: it has threads of its own and cannot be taken out safely.
std::optional<Nvml> load_nvml() {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  Nvml nvml;
  const bool complete = find_function(library, "nvmlInit_v2", nvml.init) &&
                        find_function(library, "nvmlDeviceGetHandleByIndex_v2", nvml.by_index) &&
                        find_function(library, "nvmlDeviceGetHandleByUUID", nvml.by_uuid) &&
                        find_function(library, "nvmlDeviceGetUtilizationRates", nvml.utilization);
  if (!complete || nvml.init() != 0) return std::nullopt;
  return nvml;
}

class DriverGpuUse final : public GpuUse {
 public:
  DriverGpuUse(const Nvml& nvml, void* device) : nvml_(nvml), device_(device) {}

  std::optional<double> read() override {
    // The driver measures no finer than this, and each question costs it some work.
    constexpr std::chrono::milliseconds kPause{500};
    const auto now = std::chrono::steady_clock::now();
    if (now - asked_ < kPause) return last_;
    asked_ = now;
    Nvml::Utilization result{};
    last_ =
        nvml_.utilization(device_, &result) == 0 ? std::optional(result.gpu / 100.0) : std::nullopt;
    return last_;
  }

 private:
  Nvml nvml_;
  void* device_;
  std::chrono::steady_clock::time_point asked_;
  std::optional<double> last_;
};

}  // namespace

std::string visible_device(const char* variable, int index) {
  if (variable == nullptr) return std::to_string(index);
  const std::vector<std::string> entries = split(variable, ',');
  if (index >= static_cast<int>(entries.size())) return "";
  return std::string(trim(entries[static_cast<std::size_t>(index)]));
}

std::unique_ptr<GpuUse> GpuUse::open(int index) {
  const std::string name = visible_device(std::getenv("CUDA_VISIBLE_DEVICES"), index);
  const std::optional<Nvml> nvml = name.empty() ? std::nullopt : load_nvml();
  if (!nvml) return nullptr;
  unsigned number = 0;
  const char* const end = name.data() + name.size();
  const bool is_number = std::from_chars(name.data(), end, number).ptr == end;
  void* device = nullptr;
  const int result =
      is_number ? nvml->by_index(number, &device) : nvml->by_uuid(name.c_str(), &device);
  if (result != 0) return nullptr;
  return std::make_unique<DriverGpuUse>(*nvml, device);
}

}  // namespace capstan::cli::train
