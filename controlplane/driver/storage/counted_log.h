// A log whose number of acknowledged events is also kept in a file beside it. Without that file, a
// log that was emptied or whose end was damaged would look like a log that a crash cut off, and an
// older copy of the log would look like a whole one. A driver on a shorter log would forget what it
// acknowledged, and would use numbers of attempts a second time.
// The number is compared only within an epoch (controlplane/driver/core/epoch.h). A restore of a
// copy begins a newer epoch, so the restored log may be shorter.
// The file is written without waiting for the disk. A power failure may leave an older number, or a
// part of the file, which is then ignored. So the check may miss a loss, but never reports a loss
// that did not happen.
// Threads: one owner.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "controlplane/driver/storage/event_log.h"
#include "controlplane/driver/storage/job_files.h"

namespace megascale::driver {

// The file with the number, in the driver's state directory.
std::string CountPathOf(absl::string_view state_directory);

// Checks whether the log of `state_directory` has as many events as were acknowledged. Does not
// open it for writing, because that would drop everything after a damaged record. OK if the log
// cannot be read, because opening it later reports why. Errors: DataLoss - as CountEvents.
// Blocking: reads the whole log.
absl::Status CheckCount(const std::string& state_directory, JobFiles* files);

// Returns `log`, which from now on keeps the number of its events in the file `count_path`. Call
// ReadAll before Append. Errors beside those of `log`: ReadAll - DataLoss: the log has fewer events
// than were acknowledged, or is of an older epoch; the message says what to do. Append - those of
// `files`. Ownership: `files` outlives the log. Cost: an append also writes a file of 50 bytes.
std::unique_ptr<EventLog> CountEvents(std::unique_ptr<EventLog> log, const std::string& count_path,
                                      JobFiles* files);

}  // namespace megascale::driver
