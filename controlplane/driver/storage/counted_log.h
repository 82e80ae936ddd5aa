// A log whose number of acknowledged events also stands in a file beside it. Without that file a
// log whose end was damaged, or which was emptied, reads as one that a crash tore: without its last
// events. The same holds for an older copy of the log in its place. A driver on a shorter log would
// forget what it acknowledged, and give numbers of attempts a second time.
//
// The number counts within an epoch (controlplane/driver/core/epoch.h): a copy that was declared by
// a restore begins a newer one, and may be shorter.
//
// The file is written without waiting for the disk. A power failure may leave an older number, or a
// part of the file, which then says nothing: it can only miss a loss, never claim one.
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

// Looks whether the log of `state_directory` has as many events as were acknowledged, without
// opening it for writing: that would drop what stands behind a damaged record. OK if it cannot be
// read; opening it says why. Errors: DataLoss - as CountEvents. Blocking: reads the whole log.
absl::Status CheckCount(const std::string& state_directory, JobFiles* files);

// Returns `log` with the number of its events at `count_path`. Call ReadAll before Append. Errors
// beside those of `log`: ReadAll - DataLoss: the log has fewer events than were acknowledged, or is
// of an older epoch; the message says what to do. Append - those of `files`. Ownership: `files`
// outlives the log. Cost: an append also writes a file of 50 bytes.
std::unique_ptr<EventLog> CountEvents(std::unique_ptr<EventLog> log, const std::string& count_path,
                                      JobFiles* files);

}  // namespace megascale::driver
