#include "gpu/comm/nccl_handle.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::cuda {
namespace {

// Most waits are for a few microseconds, those of initialisation for seconds.
constexpr int kPollsWithoutSleep = 100;
constexpr std::chrono::microseconds kPollInterval(500);

absl::Status AbortedHandle() { return absl::AbortedError("NCCL: the communicator was aborted"); }

}  // namespace

absl::Status ToStatus(const NcclApi& nccl, ncclResult_t result, absl::string_view detail) {
  if (result == ncclSuccess) return absl::OkStatus();
  std::string message = absl::StrCat("NCCL: ", nccl.ncclGetErrorString(result));
  if (!detail.empty()) absl::StrAppend(&message, ": ", detail);
  // A system error is one of sockets or of the network's adapter.
  if (result == ncclRemoteError || result == ncclSystemError) return absl::AbortedError(message);
  return absl::InternalError(message);
}

ncclComm_t NcclHandle::Enter() {
  std::unique_lock<std::mutex> lock(mutex_);
  left_.wait(lock, [this] { return !is_inside_ || communicator_ == nullptr; });
  if (communicator_ != nullptr) is_inside_ = true;
  return communicator_;
}

void NcclHandle::Leave() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_inside_ = false;
  }
  left_.notify_all();
}

absl::Status NcclHandle::Start(const Membership& membership) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = membership.name.c_str();
  ncclComm_t started = nullptr;
  const ncclResult_t result = nccl_.ncclCommInitRankConfig(&started, membership.size, membership.id,
                                                           membership.rank, &config);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    MEGASCALE_CHECK(communicator_ == nullptr);
    communicator_ = started;
    is_issuing_ = true;
  }
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return ToStatus(nccl_, result, nccl_.ncclGetLastError(started));
}

absl::Status NcclHandle::Issue(absl::FunctionRef<ncclResult_t(ncclComm_t)> call) {
  const ncclComm_t communicator = Enter();
  if (communicator == nullptr) return AbortedHandle();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_issuing_ = true;
  }
  const ncclResult_t result = call(communicator);
  std::string detail;
  if (result != ncclSuccess && result != ncclInProgress) {
    detail = nccl_.ncclGetLastError(communicator);
  }
  Leave();
  return result == ncclInProgress ? absl::OkStatus() : ToStatus(nccl_, result, detail);
}

ncclResult_t NcclHandle::StateOf(ncclComm_t communicator, std::string* detail) const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = nccl_.ncclCommGetAsyncError(communicator, &state);
  if (result != ncclSuccess) state = result;
  if (state != ncclSuccess && state != ncclInProgress) {
    *detail = nccl_.ncclGetLastError(communicator);
  }
  return state;
}

absl::Status NcclHandle::FindError() {
  ncclComm_t communicator = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (communicator_ == nullptr || is_inside_ || is_issuing_) return absl::OkStatus();
    is_inside_ = true;
    communicator = communicator_;
  }
  std::string detail;
  const ncclResult_t state = StateOf(communicator, &detail);
  Leave();
  return state == ncclInProgress ? absl::OkStatus() : ToStatus(nccl_, state, detail);
}

absl::Status NcclHandle::Wait(absl::FunctionRef<absl::Status()> keep_going) {
  std::string detail;
  ncclResult_t state = ncclInProgress;
  for (int polls = 0; state == ncclInProgress; ++polls) {
    const ncclComm_t communicator = Enter();
    if (communicator == nullptr) return AbortedHandle();
    state = StateOf(communicator, &detail);
    Leave();
    if (state != ncclInProgress) break;
    RETURN_IF_ERROR(keep_going());
    if (polls < kPollsWithoutSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  is_issuing_ = false;
  return ToStatus(nccl_, state, detail);
}

void NcclHandle::Abort() {
  ncclComm_t communicator = nullptr;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    communicator = std::exchange(communicator_, nullptr);
    if (communicator == nullptr) return;
    left_.wait_for(lock, absl::ToChronoNanoseconds(abort_grace_), [&] { return !is_inside_; });
  }
  left_.notify_all();
  // There is nothing left to do about an error.
  (void)nccl_.ncclCommAbort(communicator);
}

void NcclHandle::Close(absl::FunctionRef<absl::Status()> keep_going) {
  absl::Status status = Issue([&](ncclComm_t it) { return nccl_.ncclCommFinalize(it); });
  if (status.ok()) status = Wait(keep_going);
  if (!status.ok()) return Abort();
  ncclComm_t communicator = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator = std::exchange(communicator_, nullptr);
  }
  if (communicator != nullptr) (void)nccl_.ncclCommDestroy(communicator);
}

}  // namespace megascale::cuda
