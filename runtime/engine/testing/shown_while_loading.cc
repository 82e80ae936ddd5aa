#include "runtime/engine/testing/shown_while_loading.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/device/testing/forwards_to_strict.h"
#include "runtime/job/job_spec.h"

namespace megascale::engine {
namespace {

// Calls a function whenever somebody asks whether the host may touch a tensor.
class LookingDevice final : public device::ForwardsToStrict {
 public:
  tensor::HostVector OnHost(const tensor::Vector& vector) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (look_ != nullptr) look_();
    return ForwardsToStrict::OnHost(vector);
  }
  void Look(std::function<void()> look) {
    const std::lock_guard<std::mutex> lock(mutex_);
    look_ = std::move(look);
  }

 private:
  mutable std::mutex mutex_;
  std::function<void()> look_;
};

}  // namespace

std::vector<ShownByRank> ShownWhileLoading(RunOptions options) {
  std::vector<ShownByRank> shown(static_cast<size_t>(job::WorldSize(options.spec)));
  std::mutex mutex;
  std::map<int, LookingDevice*> devices;
  std::map<int, RunOptions::Look> looks;
  options.make_device = [&](int rank) {
    auto device = std::make_unique<LookingDevice>();
    const std::lock_guard<std::mutex> lock(mutex);
    devices[rank] = device.get();
    return device;
  };
  options.before_load = [&](int rank, const RunOptions::Look& look) {
    const std::lock_guard<std::mutex> lock(mutex);
    looks[rank] = look;
    ShownByRank& mine = shown[static_cast<size_t>(rank)];
    devices[rank]->Look([&mine, look] { mine.meanwhile.push_back(look()); });
  };
  options.on_load = [&](int rank, const absl::StatusOr<std::string>& loaded) {
    EXPECT_TRUE(loaded.ok()) << "rank " << rank << ": " << loaded.status();
    const std::lock_guard<std::mutex> lock(mutex);
    devices[rank]->Look(nullptr);
    shown[static_cast<size_t>(rank)].at_end = looks[rank]();
  };
  RunJob(options);
  return shown;
}

}  // namespace megascale::engine
