#include "controlplane/driver/storage/log_clock.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/timestamp.pb.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace megascale::driver {

absl::Time LogTimeAtStart(const DriverState& state, absl::Time wall) {
  if (state.newest_unix_nanos() == 0) return wall;
  const absl::Time newest = absl::FromUnixNanos(state.newest_unix_nanos());
  const absl::Duration absence = wall - absl::Seconds(state.clock_ahead_seconds()) - newest;
  return newest + std::clamp(absence, absl::ZeroDuration(), kAbsenceMax);
}

LogClock::LogClock(const base::Clock* clock, const DriverState& state)
    : clock_(*clock), began_(clock_.SinceBoot()), begin_(LogTimeAtStart(state, clock_.Wall())) {}

absl::Duration LogClock::Ahead() const {
  return absl::Seconds(std::round(absl::ToDoubleSeconds(clock_.Wall() - Now())));
}

void MoveTimes(absl::Duration by, google::protobuf::Message* message) {
  using google::protobuf::FieldDescriptor;
  if (by == absl::ZeroDuration()) return;
  if (auto* time = google::protobuf::DynamicCastToGenerated<google::protobuf::Timestamp>(message)) {
    time->set_seconds(time->seconds() + absl::ToInt64Seconds(by));
    return;
  }
  const auto* reflection = message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    if (!field->is_repeated()) {
      MoveTimes(by, reflection->MutableMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
      MoveTimes(by, reflection->MutableRepeatedMessage(message, field, i));
    }
  }
}

}  // namespace megascale::driver
