// Where the time of a job went. The driver keeps one book for each job; events change it. Each
// instant between the job's submit and its end counts for exactly one part, so the parts add up to
// the wall time in nanoseconds. Pure functions: time comes in as an argument, in Unix nanoseconds.
// The book is part of the driver's durable state, so a restart loses nothing. Start with
// EnterPhase.
//
// While a job trains, the time until the report of a step belongs to this step. Time after the
// newest step is open: the next step, a failure or the end of the job decides what it was.
#pragma once

#include <cstdint>

#include "proto/driver_log.pb.h"

namespace megascale::driver {

using TimeBook = v1::TimeBook;
using TimeAccount = megascale::control::v1::TimeAccount;

// The maximum number of marks in a book: more than one a minute of the last hour, because each
// change of the phase adds one, too.
inline constexpr int kTimeMarksMax = 120;

// A mean step that takes longer than the usual one by more than this factor is degraded.
inline constexpr double kUsualFactor = 1.1;

// Begins a book: the job waits in the queue.
void OpenBook(int64_t unix_nanos, TimeBook* book);

// The job does something else from now on. `has_failed`: an attempt has just ended by a failure.
// Then open time counts as recomputation up to one usual step, which was being computed and is
// lost; the rest counts as detection. A time that is earlier than the newest time in the book
// counts as that newest time.
struct PhaseChange {
  TimeBook::Phase phase = TimeBook::PHASE_UNSPECIFIED;
  bool has_failed = false;
  int64_t unix_nanos = 0;
};
void EnterPhase(const PhaseChange& change, TimeBook* book);

// The job completed steps. The time since the last counted step is divided: waits for the copy of a
// checkpoint count as checkpoint; if the mean step is degraded (kUsualFactor), its excess over the
// usual time counts as degraded; the rest is kept. The usual time is the mean of the first counted
// steps, or a shorter later mean of at least kUsualSteps steps.
inline constexpr int64_t kUsualSteps = 10;
void CountSteps(const v1::StepsTaken& taken, TimeBook* book);

// The job continues after `step`, so the time of later steps becomes recomputation, in the marks,
// too. The time of a step between two marks is interpolated.
void RollBack(int64_t step, TimeBook* book);

// Returns the account at a time that is not before the newest one in the book. Open time counts as
// kept up to one usual step, and the rest as detection. If the usual step is not known, all of it
// counts as kept.
TimeAccount AccountAt(const TimeBook& book, int64_t unix_nanos);

// Returns the account of the hour before this time, or before the end of a job that has ended; for
// a younger job, of its whole life.
TimeAccount LastHourAt(const TimeBook& book, int64_t unix_nanos);

}  // namespace megascale::driver
