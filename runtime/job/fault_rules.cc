// The rules of a fault section: how long to wait for what, and how often to try again.
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/job/deadlines.h"
#include "runtime/job/field_checks.h"
#include "runtime/job/job_rules.h"
#include "runtime/job/job_spec.h"

namespace megascale::job {
namespace {

constexpr absl::Duration kDurationMax = absl::Hours(24 * 7);
// Lower limits would repeatedly fail healthy jobs on a busy machine, or flood the driver with
// reports.
constexpr absl::Duration kHeartbeatIntervalMin = absl::Milliseconds(100);
constexpr absl::Duration kHeartbeatTimeoutMin = absl::Milliseconds(500);
constexpr absl::Duration kTimeoutMin = absl::Seconds(1);
constexpr absl::Duration kBackoffMin = absl::Milliseconds(10);

struct NamedDuration {
  absl::string_view field;
  absl::Duration value;
  absl::Duration least = kTimeoutMin;
};

absl::Status CheckDuration(NamedDuration named) {
  if (named.value >= named.least && named.value <= kDurationMax) return absl::OkStatus();
  return Refuse(
      named.field,
      absl::StrCat(absl::FormatDuration(named.value), " is out of range; expected ",
                   absl::FormatDuration(named.least), " to ", absl::FormatDuration(kDurationMax)));
}

absl::Status CheckShorter(NamedDuration shorter, NamedDuration longer) {
  if (shorter.value < longer.value) return absl::OkStatus();
  return Refuse(longer.field,
                absl::StrCat(absl::FormatDuration(longer.value), " must be longer than ",
                             shorter.field, " = ", absl::FormatDuration(shorter.value)));
}

NamedDuration HeartbeatInterval(const v1::FaultSpec& fault) {
  return {"fault.heartbeat_interval", ToDuration(fault.heartbeat_interval()),
          kHeartbeatIntervalMin};
}
NamedDuration HeartbeatTimeout(const v1::FaultSpec& fault) {
  return {"fault.heartbeat_timeout", ToDuration(fault.heartbeat_timeout()), kHeartbeatTimeoutMin};
}
NamedDuration ProgressTimeout(const v1::FaultSpec& fault) {
  return {"fault.progress_timeout", ToDuration(fault.progress_timeout())};
}
NamedDuration StartTimeout(const v1::FaultSpec& fault) {
  return {"fault.start_timeout", ToDuration(fault.start_timeout())};
}

// What the adapters can do: five and three bits. A time of 0 would be one without end.
constexpr IntegerRange kNcclIbTimeoutRange = {1, 31};
constexpr IntegerRange kNcclIbRetryCountRange = {0, 7};

// One mistake for each field: of the device, or of the value.
absl::Status CheckNccl(const v1::FaultSpec& fault, v1::Device device) {
  const auto check = [device](absl::string_view field, int value, IntegerRange range) {
    // Zero is a value here, not a missing one.
    if (value < range.least || value > range.most) {
      return Refuse(field, absl::StrCat(value, " is out of range; expected ", range.least, " to ",
                                        range.most));
    }
    if (device == v1::DEVICE_CUDA) return absl::OkStatus();
    return Refuse(field, "is for GPUs; expected device = cuda, or no value");
  };
  return All(
      {fault.has_nccl_ib_timeout()
           ? check("fault.nccl_ib_timeout", fault.nccl_ib_timeout(), kNcclIbTimeoutRange)
           : absl::OkStatus(),
       fault.has_nccl_ib_retry_count()
           ? check("fault.nccl_ib_retry_count", fault.nccl_ib_retry_count(), kNcclIbRetryCountRange)
           : absl::OkStatus()});
}

// Else the deadlines of a start (deadlines.h) would not be in their order.
absl::Status CheckOrder(const v1::FaultSpec& fault) {
  if (AreInOrder(fault)) return absl::OkStatus();
  const NamedDuration progress = ProgressTimeout(fault);
  const NamedDuration start = StartTimeout(fault);
  return Refuse(start.field,
                absl::StrCat(absl::FormatDuration(start.value), " must be at least ",
                             absl::FormatDuration(progress.value / kNextDeadline), ", 1.25 times ",
                             progress.field, " = ", absl::FormatDuration(progress.value)));
}

}  // namespace

absl::Status CheckFaultFields(const v1::FaultSpec& fault, v1::Device device) {
  return All(
      {CheckDuration(HeartbeatInterval(fault)), CheckDuration(HeartbeatTimeout(fault)),
       CheckDuration(ProgressTimeout(fault)), CheckDuration(StartTimeout(fault)),
       CheckDuration({"fault.restart_backoff", ToDuration(fault.restart_backoff()), kBackoffMin}),
       CheckDuration({"fault.checkpoint_timeout", ToDuration(fault.checkpoint_timeout())}),
       CheckInteger("fault.max_restarts_without_progress", fault.max_restarts_without_progress(),
                    {1, kSizeMax}),
       CheckNccl(fault, device)});
}

absl::Status CheckFault(const v1::FaultSpec& fault) {
  const NamedDuration interval = HeartbeatInterval(fault);
  return All({CheckShorter(interval, HeartbeatTimeout(fault)),
              CheckShorter(interval, ProgressTimeout(fault)),
              CheckShorter(interval, StartTimeout(fault)), CheckOrder(fault)});
}

}  // namespace megascale::job
