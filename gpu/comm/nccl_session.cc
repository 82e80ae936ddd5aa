#include "gpu/comm/nccl_session.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace megascale::cuda {
namespace {

using comm::CallInfo;
using comm::Operation;
using tensor::DType;
using tensor::HostVector;

// How often the watch looks while a call is under way: the time in which an abort frees the others.
constexpr std::chrono::milliseconds kLookInterval(5);
// How often it asks the kernel whether peers live, with a system call for each.
constexpr absl::Duration kPeerCheckInterval = absl::Milliseconds(100);
// The instruction in which ranks report to each other. No plan has as many.
constexpr uint64_t kReportInstruction = ~uint64_t{0};

absl::Duration Now() { return base::RealClock().Monotonic(); }

std::vector<int> WorldRanks(const comm::HostCommunicator& host) {
  std::vector<int> ranks;
  for (int i = 0; i < host.size(); ++i) ranks.push_back(host.WorldRank(i));
  return ranks;
}

std::string RankList(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

}  // namespace

struct NcclSession::Report {
  // Stands for an operation: NCCL's start. The sequence is then 1 on ranks that have started.
  static constexpr uint64_t kStart = 1 << 10;

  uint64_t operation = 0;
  uint64_t sequence = 0;
  uint64_t instruction_id = 0;
  uint64_t bytes = 0;

  friend bool operator==(const Report&, const Report&) = default;

  static Report Of(const Call& call) {
    return {static_cast<uint64_t>(call.operation), call.sequence, call.instruction_id, call.bytes};
  }
  std::string Text() const {
    return Describe(Call{.operation = static_cast<Operation>(operation),
                         .sequence = sequence,
                         .instruction_id = instruction_id,
                         .bytes = bytes});
  }
};

NcclSession::NcclSession(const NcclOptions& options)
    : options_(options),
      nccl_(*options.nccl),
      cuda_(*options.cuda),
      host_(*options.host),
      progress_({.progress = host_.progress(),
                 .name = host_.name(),
                 .rank = host_.rank(),
                 .world_ranks = WorldRanks(host_)}),
      handle_(options.nccl, options.abort_grace),
      calls_(options.cuda, options.stream) {}

NcclSession::~NcclSession() {
  const absl::Duration deadline = Now() + options_.close_timeout;
  // The watch forgets calls that have ended, and fails the session where one does not end.
  while (failure().ok() && calls_.Oldest().has_value() && Now() < deadline) {
    std::this_thread::sleep_for(kLookInterval);
  }
  const std::optional<Call> oldest = calls_.Oldest();
  if (failure().ok() && oldest.has_value()) {
    Abort(absl::AbortedError(absl::StrCat(Context(), ": closed during ", Describe(*oldest))));
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (watch_.joinable()) watch_.join();
  if (failure().ok()) {
    handle_.Close([&]() -> absl::Status {
      RETURN_IF_ERROR(FindGonePeer());
      return Now() < deadline ? absl::OkStatus() : absl::DeadlineExceededError("close timed out");
    });
  }
  // A device that has failed frees nothing; the process is about to end.
  (void)cuda_.cudaFree(barrier_);
}

absl::Status NcclSession::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

absl::Status NcclSession::Fail(const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = status;
  }
  changed_.notify_all();
  if (options_.on_failure) options_.on_failure(status);
  host_.Abort(status);  // peers learn of it before NCCL's own end takes its time
  handle_.Abort();
  return status;
}

void NcclSession::Abort(const absl::Status& reason) {
  const std::vector<int> blamed = comm::BlamedRanks(reason);
  const absl::Status status = absl::AbortedError(reason.message());
  (void)Fail(blamed.empty() ? status : comm::Blame(status, blamed));
}

std::string NcclSession::Context() const {
  return absl::StrCat("group ", host_.name(), ", rank ", host_.WorldRank(host_.rank()));
}

absl::Status NcclSession::Start() {
  const absl::Status status = StartNccl();
  if (!status.ok()) return Fail(status);
  watch_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

absl::Status NcclSession::StartNccl() {
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaGetDevice(&device_)));
  RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaMalloc(&barrier_, sizeof(float))));
  RETURN_IF_ERROR(
      MEGASCALE_CUDA_CALL(cuda_, cudaMemsetAsync(barrier_, 0, sizeof(float), options_.stream)));
  NcclHandle::Membership membership = {
      .rank = host_.rank(), .size = host_.size(), .name = host_.name()};
  if (host_.rank() == 0) {
    const ncclResult_t result = nccl_.ncclGetUniqueId(&membership.id);
    RETURN_IF_ERROR(base::Annotate(ToStatus(nccl_, result, "ncclGetUniqueId"), Context()));
  }
  const CallInfo info = {.instruction_id = kReportInstruction, .timeout = options_.start_timeout};
  const auto id = HostVector::OfBytes(absl::MakeSpan(&membership.id, 1), DType::kI32);
  RETURN_IF_ERROR(host_.Broadcast(id, 0, info));
  // Once all members have the id, their time in NCCL runs out together.
  RETURN_IF_ERROR(host_.Barrier(info));
  absl::Status status = handle_.Start(membership);
  if (status.ok()) status = AwaitStart();
  if (status.ok() || absl::IsDeadlineExceeded(status)) return AgreeOnStart(status.ok());
  return Explain(status, nullptr);
}

absl::Status NcclSession::AwaitStart() {
  const absl::Duration deadline = Now() + options_.start_timeout;
  return handle_.Wait([&]() -> absl::Status {
    RETURN_IF_ERROR(FindGonePeer());
    return Now() < deadline ? absl::OkStatus() : absl::DeadlineExceededError("timed out");
  });
}

absl::Status NcclSession::AgreeOnStart(bool has_started) {
  // A rank that has started waits for those that are still in their time.
  const absl::Duration timeout =
      options_.blame_timeout + (has_started ? options_.start_timeout : absl::ZeroDuration());
  ASSIGN_OR_RETURN(const std::vector<Report> reports,
                   ExchangeReports({Report::kStart, has_started ? uint64_t{1} : 0}, timeout));
  std::vector<int> late;
  for (int i = 0; i < host_.size(); ++i) {
    if (reports[static_cast<size_t>(i)].sequence == 0) late.push_back(host_.WorldRank(i));
  }
  if (late.empty()) return host_.FindFailure(/*asks_kernel=*/false);
  const absl::Status status = absl::DeadlineExceededError(absl::StrCat(
      Context(), ": NCCL's start timed out after ", absl::FormatDuration(options_.start_timeout),
      " on ", RankList(late), "; check the network of the job's interface"));
  // Where no rank could start, none is more to blame than the others.
  return late.size() == reports.size() ? status : comm::Blame(status, late);
}

absl::StatusOr<std::vector<NcclSession::Report>> NcclSession::ExchangeReports(
    Report mine, absl::Duration timeout) {
  std::vector<Report> reports(static_cast<size_t>(host_.size()));
  RETURN_IF_ERROR(host_.AllGather(HostVector::OfBytes(absl::MakeSpan(&mine, 1), DType::kI32),
                                  HostVector::OfBytes(absl::MakeSpan(reports), DType::kI32),
                                  {.instruction_id = kReportInstruction, .timeout = timeout}));
  // Nobody fails, and ends the host communicator, before all have the reports. It no longer matters
  // if that ends while a rank waits here.
  host_.Barrier({.instruction_id = kReportInstruction, .timeout = timeout}).IgnoreError();
  return reports;
}

absl::Status NcclSession::Run(const Call& call, Work work) {
  RETURN_IF_ERROR(failure());
  absl::Status status = calls_.Begin(call);
  if (!status.ok()) return Fail(base::Annotate(status, Context()));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_work_ = true;
  }
  changed_.notify_all();
  progress_.Launch(call);
  status = handle_.Issue(work);
  // The watch ends a wait that takes too long: it fails the session.
  if (status.ok()) status = handle_.Wait([this] { return failure(); });
  if (!status.ok()) return Fail(Explain(status, &call));
  status = calls_.End();
  return status.ok() ? status : Fail(base::Annotate(status, Context()));
}

void NcclSession::Watch() {
  absl::Status status = MEGASCALE_CUDA_CALL(cuda_, cudaSetDevice(device_));
  while (status.ok() && AwaitLook()) status = Look();
  if (!status.ok()) (void)Fail(status);
}

// Returns false when the session has ended.
bool NcclSession::AwaitLook() {
  const bool is_idle = !calls_.Oldest().has_value();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_ended = [this] { return closing_ || !failure_.ok(); };
  if (is_idle) {
    changed_.wait(lock, [&] { return has_work_ || has_ended(); });
  } else {
    changed_.wait_for(lock, kLookInterval, has_ended);
  }
  has_work_ = false;
  return !has_ended();
}

absl::Status NcclSession::Look() {
  const absl::Status gone = FindGonePeer();
  const absl::Status error = handle_.FindError();
  // After these two: an exchange that has ended needs its peers no longer.
  const auto running = calls_.Look(Now());
  if (!running.ok()) return base::Annotate(running.status(), Context());
  const std::optional<Call> oldest = calls_.Oldest();
  if (!oldest.has_value()) return absl::OkStatus();
  if (!gone.ok()) return base::Annotate(gone, absl::StrCat(Context(), ", ", Describe(*oldest)));
  if (!error.ok()) return Explain(error, &*oldest);
  if (!running->has_value()) return absl::OkStatus();
  const CallWatch::Running& it = **running;
  if (Now() - it.since >= it.call.timeout) {
    return EndLate(it, absl::StrCat("timed out after ", absl::FormatDuration(it.call.timeout)));
  }
  // A rank that came earlier asks who is there.
  if (host_.HasCall(kReportInstruction)) return EndLate(it, "timed out on another rank");
  return absl::OkStatus();
}

absl::Status NcclSession::EndLate(const CallWatch::Running& late, absl::string_view how) {
  const std::string text = absl::StrCat(Context(), ", ", Describe(late.call), ": ", how);
  if (late.call.peer_rank >= 0) {
    return comm::Blame(absl::DeadlineExceededError(
                           absl::StrCat(text, "; not arrived: rank ", late.call.peer_rank)),
                       {late.call.peer_rank});
  }
  const Report mine = Report::Of(late.call);
  const auto reports = ExchangeReports(mine, options_.blame_timeout);
  if (reports.ok()) return base::Annotate(Compare(mine, *reports), text);
  const std::vector<int> blamed = comm::BlamedRanks(reports.status());
  if (!absl::IsDeadlineExceeded(reports.status())) return base::Annotate(reports.status(), text);
  return comm::Blame(
      absl::DeadlineExceededError(absl::StrCat(text, "; not arrived: ", RankList(blamed))), blamed);
}

absl::Status NcclSession::Compare(const Report& mine, const std::vector<Report>& reports) const {
  for (int i = 0; i < host_.size(); ++i) {
    const Report& other = reports[static_cast<size_t>(i)];
    if (other == mine) continue;
    return absl::InternalError(absl::StrCat("rank ", host_.WorldRank(i), " is in another call: ",
                                            other.Text(), "; expected ", mine.Text()));
  }
  return absl::DeadlineExceededError("all ranks have arrived; NCCL, a GPU or the network hangs");
}

absl::Status NcclSession::FindGonePeer() {
  const absl::Duration now = Now();
  bool asks_kernel = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    asks_kernel = now >= next_peer_check_;
    if (asks_kernel) next_peer_check_ = now + kPeerCheckInterval;
  }
  return host_.FindFailure(asks_kernel);
}

absl::Status NcclSession::Explain(const absl::Status& error, const Call* call) {
  const std::string context =
      absl::StrCat(Context(), ", ", call == nullptr ? "NCCL's start" : Describe(*call));
  // NCCL often sees first that a peer is gone, but not which one, and why.
  const absl::Duration deadline = Now() + options_.blame_timeout;
  while (absl::IsAborted(error) && failure().ok() && Now() < deadline) {
    if (const absl::Status gone = FindGonePeer(); !gone.ok()) return base::Annotate(gone, context);
    std::this_thread::sleep_for(kLookInterval);
  }
  absl::Status status = base::Annotate(error, context);
  if (!absl::IsAborted(error) || call == nullptr || call->peer_rank < 0) return status;
  return comm::Blame(status, {call->peer_rank});
}

}  // namespace megascale::cuda
