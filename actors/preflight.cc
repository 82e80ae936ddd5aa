#include "actors/preflight.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/process/thread_environment.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/checkpoint/owner.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/shared_directory.h"
#include "runtime/data/batches/loader.h"
#include "runtime/data/dataset/dataset.h"
#include "runtime/engine/state/resume.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/job/data_digest.h"
#include "runtime/job/deadlines.h"
#include "runtime/job/evaluation.h"
#include "runtime/job/job_spec.h"
#include "runtime/job/known_fields.h"
#include "runtime/layout/node_memory.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/ops/ops.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/check/validate_roles.h"

namespace megascale::actors {
namespace {

using megascale::agent::v1::Preflight;
using megascale::link::v1::HostAssignment;

constexpr double kMeasureSeconds = 0.3;
constexpr double kMeasureBusySeconds = 0.05;

constexpr absl::Duration kMeasureTurn = absl::Seconds(10);
constexpr absl::Duration kProgressInterval = absl::Seconds(1);

// Allows one measurement at a time on a machine, because two at once would halve each other's rate.
// The lock is a file of this user in the machine's temporary directory, removed afterwards. Without
// it a measurement is only less exact, so the wait for it is short.
class MeasureLock {
 public:
  MeasureLock()
      : path_(absl::StrCat("/tmp/megascale-measure-", ::getuid(), ".lock")),
        fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    const absl::Duration end = base::RealClock().Monotonic() + kMeasureTurn;
    while (fd_.valid() && ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
           base::RealClock().Monotonic() < end) {
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  ~MeasureLock() { ::unlink(path_.c_str()); }

 private:
  const std::string path_;
  const base::UniqueFd fd_;
};

const char* ComputeName(tensor::DType compute) {
  if (compute == tensor::DType::kF64) return "fp64";
  return compute == tensor::DType::kBF16 ? "bf16" : "fp32";
}

// Fills in the peak of the devices of this machine's ranks; returns false if it is unknown.
bool SetPeak(const HostAssignment& assignment, const device::Description& device,
             Preflight* result) {
  const auto compute = layout::ComputeType(assignment.spec().train().precision());
  const double peak = device.peak.OfProducts(compute);
  const int num_devices = (assignment.local_ranks_size() + device.num_ranks - 1) / device.num_ranks;
  result->set_flops_ceiling(peak * num_devices);
  return peak > 0;
}

// Fills in the machine's rate of matrix products, and a warning if the machine was busy meanwhile.
void FindOrMeasureCeiling(const HostAssignment& assignment, CeilingSources sources,
                          Preflight* result) {
  const MeasureLock lock;
  const auto compute = layout::ComputeType(assignment.spec().train().precision());
  const int cores = static_cast<int>(std::ceil(base::SmallestCpuLimit().cores));
  if (!sources.measure) {
    sources.measure = [&](bool idle) {
      return ops::MeasureMatMulCeiling(compute, cores,
                                       idle ? kMeasureSeconds : kMeasureBusySeconds);
    };
  }
  if (!sources.is_idle) sources.is_idle = MachineIsIdle;
  if (!sources.now) sources.now = absl::Now;
  const Ceiling ceiling = FindCeiling(CeilingKey(ComputeName(compute), cores), sources);
  result->set_flops_ceiling(ceiling.flops_per_second);
  result->mutable_ceiling_measured_at()->set_seconds(absl::ToUnixSeconds(ceiling.measured_at));
  const std::string text = CeilingText(ceiling, sources.now());
  base::LogInfo(absl::StrCat("matrix products of this machine: ", text));
  if (ceiling.idle) return;
  result->add_warnings(absl::StrCat("MFU is given against ", text,
                                    ", the best so far; a job that starts while the machine is "
                                    "idle measures it anew"));
}

// Warns of more threads than cores: each step then waits for the thread that the kernel runs last.
void WarnOfCores(const HostAssignment& assignment, Preflight* result) {
  const int threads = assignment.spec().parallel().threads_per_rank();
  const int ranks = assignment.local_ranks_size();
  const base::CpuLimit limit = base::SmallestCpuLimit();
  if (base::HaveCores(ranks, threads, limit.cores)) return;
  result->add_warnings(absl::StrCat(
      "parallel.threads_per_rank: ", ranks, ranks == 1 ? " rank × " : " ranks × ", threads, " = ",
      int64_t{ranks} * threads, " threads share ", limit.cores, " cores (", limit.source,
      "), so steps are slower; expected at most as many threads as cores: use fewer, place fewer "
      "ranks here, or raise the limit"));
}

constexpr absl::Duration kFreeMemoryPause = absl::Milliseconds(200);

// Refuses a job that the kernel would later kill for lack of memory.
absl::Status CheckMemory(const HostAssignment& assignment, const device::Description& device,
                         const PreflightOptions& options) {
  const auto& ranks = assignment.local_ranks();
  ASSIGN_OR_RETURN(const layout::NodeMemory needed,
                   layout::MemoryOfNode(assignment.spec(), {ranks.begin(), ranks.end()}));
  RETURN_IF_ERROR(layout::CheckDescriptors(needed, base::RaiseDescriptorLimit()));
  RETURN_IF_ERROR(layout::CheckRings(needed, base::LeastMemoryLimit()));
  RETURN_IF_ERROR(layout::CheckMemory(needed, base::LeastMemoryLimit()));
  if (device.memory_bytes == 0) return absl::OkStatus();
  // Other programs may use the device, too.
  std::optional<int64_t> free_bytes = device.free_bytes;
  const absl::Duration end = base::RealClock().Monotonic() + options.free_bytes_patience;
  for (;;) {
    const int64_t left = std::min(device.memory_bytes, free_bytes.value_or(device.memory_bytes));
    absl::Status enough =
        layout::CheckDeviceMemory(needed, {.available_bytes = left / device.num_ranks,
                                           .limit_bytes = device.memory_bytes / device.num_ranks,
                                           .source = device.name});
    const bool may_grow = free_bytes.has_value() && options.free_bytes;
    if (enough.ok() || !may_grow || base::RealClock().Monotonic() >= end) return enough;
    absl::SleepFor(kFreeMemoryPause);
    free_bytes = options.free_bytes();
  }
}

// Refuses a step that could not run, by checking the instructions of all ranks against each other.
absl::Status CheckPlans(const HostAssignment& assignment) {
  ASSIGN_OR_RETURN(layout::RankLayout part, layout::RankLayoutOf(assignment.spec(), 0));
  for (const bool evaluates : {false, true}) {
    part.plan_options.evaluates = evaluates;
    ASSIGN_OR_RETURN(const std::vector<plan::RankPlan> roles,
                     plan::BuildRolePlans(part.plan_options));
    RETURN_IF_ERROR(plan::ValidateRolePlans(roles));
  }
  return absl::OkStatus();
}

// Says that evaluations will find nothing to measure.
void WarnOfHeldOut(const job::v1::JobSpec& spec, int64_t num_tokens, Preflight* result) {
  const int seq_length = spec.train().seq_length();
  if (job::EvaluationInterval(spec) == 0 || data::NumWindows(num_tokens, seq_length) > 0) return;
  result->add_warnings(absl::StrCat(
      "the held-out part of the data has ", num_tokens, num_tokens == 1 ? " token" : " tokens",
      ", and a window for the loss on held-out text needs train.seq_length + 1 = ", seq_length + 1,
      "; the job trains without that loss: raise data.held_out_fraction, or set "
      "train.eval_interval to 0"));
}

// Checks that all machines see the same directory. Waits for less time than the whole preflight may
// take, so that its error arrives in time.
absl::Status CheckShared(const HostAssignment& assignment) {
  if (assignment.nonce().empty() || assignment.nonce_node_id() == assignment.node_id()) {
    return absl::OkStatus();
  }
  absl::Status shared = checkpoint::WaitForNonce(
      {.directory = assignment.checkpoint_directory(),
       .nonce = assignment.nonce(),
       .node_id = assignment.node_id(),
       .writer_node_id = assignment.nonce_node_id(),
       .timeout = job::DeadlinesOf(assignment.spec().fault()).start * job::kNextDeadline});
  // Both machines saw it before: one of them waits for its storage.
  if (shared.ok() || !assignment.ran_here()) return shared;
  return base::WithErrno(shared, ENOENT);
}

// Makes the directory the job's. The machine of the first rank claims it; the others wait for that.
absl::Status OwnDirectory(const HostAssignment& assignment, Preflight* result) {
  const std::string& directory = assignment.checkpoint_directory();
  if (!assignment.has_owner()) return base::MakeDirectories(directory);  // an older driver
  if (assignment.nonce().empty() || assignment.nonce_node_id() == assignment.node_id()) {
    if (!assignment.has_data()) result->set_newest_attempt(checkpoint::NewestAttemptIn(directory));
    const auto said = checkpoint::ClaimDirectory({.directory = directory,
                                                  .owner = assignment.owner(),
                                                  .ran_before = assignment.has_data(),
                                                  .owned_before = assignment.owns_directory(),
                                                  .take_over = assignment.take_over(),
                                                  .from_checkpoint = assignment.from_checkpoint()});
    RETURN_IF_ERROR(said.status());
    for (const std::string& line : *said) result->add_warnings(line);
  } else {
    RETURN_IF_ERROR(checkpoint::CheckOwner(directory, assignment.owner()));
  }
  result->set_owns_directory(true);
  return absl::OkStatus();
}

// Checks that the directory belongs to the job and can be written. The first rank's machine writes
// the nonce there, so that the others find it.
absl::Status CheckDirectory(const HostAssignment& assignment, Preflight* result) {
  const std::string& directory = assignment.checkpoint_directory();
  if (assignment.has_owner()) RETURN_IF_ERROR(CheckShared(assignment));
  absl::Status written = OwnDirectory(assignment, result);
  if (written.ok()) {
    const std::string probe = absl::StrCat(directory, "/.preflight-", ::getpid());
    written = base::WriteFileDurably(probe, "megascale");
    ::unlink(probe.c_str());
  }
  if (written.ok() && assignment.nonce_node_id() == assignment.node_id()) {
    written = checkpoint::WriteNonce(directory, assignment.nonce());
  }
  return base::Annotate(written, "checkpoint.directory");
}

// Finds where the job goes on from the checkpoint that it begins from.
absl::Status FindStart(const HostAssignment& assignment, const device::Description& device,
                       Preflight* result) {
  const std::string& directory = assignment.from_checkpoint();
  ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(directory));
  const checkpoint::v1::Manifest& manifest = reader->manifest();
  auto numerics = checkpoint::MakeNumericsFingerprint(assignment.spec(), device.numerics);
  checkpoint::TakeProductTable(manifest.numerics(), &numerics);
  const absl::StatusOr<engine::ResumePlace> place = engine::PlaceToResume(
      manifest,
      {.spec = &assignment.spec(),
       .data = &result->data(),
       .numerics = &numerics,
       .allow_changed = {assignment.allow_changed().begin(), assignment.allow_changed().end()}});
  if (!place.ok()) return base::Annotate(place.status(), directory);
  base::LogInfo(absl::StrCat("--from: begins after step ", place->step, ", at sample ",
                             manifest.next_sample(), ", of job ", manifest.job_id(), ": ",
                             directory));
  result->set_first_step(place->step);
  result->set_sample_offset(place->sample_offset);
  for (const std::string& warning : place->warnings) result->add_warnings(warning);
  return absl::OkStatus();
}

// A job that has trained goes on from a checkpoint of its own, so only the data must be the same.
absl::Status CheckSameData(const HostAssignment& assignment, const PreflightOptions& options,
                           const checkpoint::v1::DataFingerprint& data) {
  if (job::AreSameData(assignment.data(), data)) return absl::OkStatus();
  const checkpoint::v1::DataFingerprint kept = WithFiles(assignment.data(), options.fetch_files);
  std::string which;
  for (int i = 0; i < std::min(kept.file_sha256_size(), data.file_sha256_size()); ++i) {
    if (kept.file_sha256(i) == data.file_sha256(i)) continue;
    which = absl::StrCat(" (files[", i, "] of ", data.file_sha256_size(), " is the first)");
    break;
  }
  return MayBeMissing(assignment.data(), data,
                      absl::FailedPreconditionError(
                          absl::StrCat("data.files: the text on node ", assignment.node_id(),
                                       " differs from that on which the job has trained", which,
                                       "; every machine needs the same files")));
}

// Tells how far the encoding of text is, not more often than people read.
data::OnProgress ReportsOf(const PreflightOptions& options) {
  if (!options.on_progress) return {};
  struct State {
    absl::Duration last = -kProgressInterval;
    int64_t progress = 0;
  };
  const auto state = std::make_shared<State>();
  return [state, &options](const std::string& what, int64_t done, int64_t all) {
    const absl::Duration now = base::RealClock().Monotonic();
    if (now - state->last < kProgressInterval) return;
    state->last = now;
    Preflight running;
    running.set_state(Preflight::STATE_RUNNING);
    // Waiting for another process's encoding is progress, too: it may take long.
    running.set_progress(++state->progress);
    running.set_message(all > 0 ? absl::StrCat(what, ": ", 100 * done / all, " %") : what);
    options.on_progress(running);
  };
}

absl::Status Check(const HostAssignment& assignment, const device::Description& device,
                   const PreflightOptions& options, Preflight* result) {
  const auto& spec = assignment.spec();
  // The driver may be of a newer version.
  RETURN_IF_ERROR(job::CheckIsKnown(spec));
  RETURN_IF_ERROR(CheckDirectory(assignment, result));
  RETURN_IF_ERROR(CheckPlans(assignment));
  if (!assignment.has_memory()) RETURN_IF_ERROR(CheckMemory(assignment, device, options));
  ASSIGN_OR_RETURN(const auto dataset,
                   data::Dataset::Open(spec, {.on_progress = ReportsOf(options)}));
  ASSIGN_OR_RETURN(*result->mutable_data(), dataset->Fingerprint());
  for (const std::string& warning : dataset->warnings()) result->add_warnings(warning);
  WarnOfHeldOut(assignment.spec(), dataset->held_out().num_tokens(), result);
  if (assignment.has_data()) {
    RETURN_IF_ERROR(CheckSameData(assignment, options, result->data()));
    result->set_sample_offset(assignment.sample_offset());
    return CheckShared(assignment);
  }
  if (!spec.model().from().empty()) {
    const auto weights = hugging_face::InitialWeights::Open(spec.model());
    if (!weights.ok()) return base::Annotate(weights.status(), "model.from");
    for (const std::string& warning : (*weights)->warnings()) result->add_warnings(warning);
  }
  if (!assignment.from_checkpoint().empty()) {
    RETURN_IF_ERROR(FindStart(assignment, device, result));
  }
  return CheckShared(assignment);
}

// How long storage that is away is left alone before the next look.
constexpr absl::Duration kAwayPause = absl::Seconds(1);

// If the job has run before, its files were there. They may come back.
absl::Status CheckPatiently(const HostAssignment& assignment, const device::Description& device,
                            const PreflightOptions& options, Preflight* result) {
  const absl::Duration patience = job::ToDuration(assignment.spec().fault().checkpoint_timeout());
  const absl::Duration begin = base::RealClock().Monotonic();
  Preflight waits;
  waits.set_state(Preflight::STATE_RUNNING);
  for (;;) {
    result->Clear();
    absl::Status status = Check(assignment, device, options, result);
    const bool of_storage = base::ErrnoOf(status) != 0 && !base::IsOutOfMemory(status);
    const absl::Duration waited = base::RealClock().Monotonic() - begin;
    // Unset in a job of a release that did not know the limit.
    const bool limited = patience > absl::ZeroDuration();
    if (!of_storage || !assignment.ran_here() || (limited && waited >= patience)) return status;
    const std::string text = absl::StrCat(
        "waits for storage (", absl::FormatDuration(absl::Floor(waited, absl::Seconds(1))), " of ",
        absl::FormatDuration(patience), "): ", status.message());
    base::LogWarning(text);
    waits.set_progress(waits.progress() + 1);
    waits.set_message(text);
    if (options.on_progress) options.on_progress(waits);
    if (options.on_away && waited >= options.away_short)
      options.on_away(std::string(status.message()));
    absl::SleepFor(kAwayPause);
  }
}

}  // namespace

checkpoint::v1::DataFingerprint WithFiles(checkpoint::v1::DataFingerprint data,
                                          const std::function<std::vector<std::string>()>& fetch) {
  if (!data.file_sha256().empty() || !fetch) return data;
  const std::vector<std::string> files = fetch();
  checkpoint::v1::DataFingerprint full = data;
  *full.mutable_file_sha256() = {files.begin(), files.end()};
  full.clear_files_sha256();
  return job::DigestOf(full).files_sha256() == data.files_sha256() ? full : data;
}

absl::Status MayBeMissing(const checkpoint::v1::DataFingerprint& before,
                          const checkpoint::v1::DataFingerprint& now, const absl::Status& differs) {
  const auto num_files = [](const checkpoint::v1::DataFingerprint& data) {
    return std::max<int64_t>(data.num_files(), data.file_sha256_size());
  };
  const bool fewer = num_files(now) < num_files(before);
  return fewer ? base::WithErrno(differs, ENOENT) : differs;
}

bool IsAway(const absl::Status& status) {
  switch (base::ErrnoOf(status)) {
    case EIO:
    case ESTALE:
    case ENOTCONN:
    case ETIMEDOUT:
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case EREMOTEIO:
    case ENOLINK:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<Preflight> RunPreflight(const HostAssignment& assignment,
                                       const device::Description& device,
                                       PreflightOptions options) {
  Preflight result;
  const absl::Status status = CheckPatiently(assignment, device, options, &result);
  const bool of_system = base::ErrnoOf(status) != 0;
  const bool lost = absl::IsPermissionDenied(status) && !of_system;
  if (IsAway(status) || (assignment.ran_here() && (of_system || lost))) return status;
  if (!status.ok()) {
    result.set_state(Preflight::STATE_REFUSED);
    result.set_message(std::string(status.message()));
    return result;
  }
  WarnOfCores(assignment, &result);
  if (!SetPeak(assignment, device, &result)) {
    CeilingSources sources;
    sources.directory = base::UserStateDirectory();
    if (options.ceilings) sources = *std::move(options.ceilings);
    FindOrMeasureCeiling(assignment, std::move(sources), &result);
  }
  result.set_state(Preflight::STATE_PASSED);
  return result;
}

}  // namespace megascale::actors
