// Where the time of a job went: a book that the driver's events keep, one for each job. Each
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

// The most marks of a book. More than one a minute of the last hour, for changes of the phase.
inline constexpr int kTimeMarksMax = 120;

// A mean step that takes longer than the usual one by more than this factor is degraded.
inline constexpr double kUsualFactor = 1.1;

// Begins a book: the job waits in the queue.
void OpenBook(int64_t unix_nanos, TimeBook* book);

// The job does something else from now on. `has_failed`: an attempt has just ended by a failure.
// Then open time counts as detection, less one usual step, which was being computed and is lost.
// A time before the newest one in the book counts as that.
struct PhaseChange {
  TimeBook::Phase phase = TimeBook::PHASE_UNSPECIFIED;
  bool has_failed = false;
  int64_t unix_nanos = 0;
};
void EnterPhase(const PhaseChange& change, TimeBook* book);

// The job completed steps. Of the time since the newest step before, what they waited for the copy
// of a checkpoint is apart, and what they took beyond the usual time is degraded. The usual time is
// the shortest mean of at least kUsualSteps steps.
inline constexpr int64_t kUsualSteps = 10;
void CountSteps(const v1::StepsTaken& taken, TimeBook* book);

// The job goes on after `step`: the time of later steps becomes recomputation, in the marks, too.
// It is interpolated between the marks.
void RollBack(int64_t step, TimeBook* book);

// Returns the account at a time that is not before the newest one in the book. Open time counts as
// kept up to one usual step (all of it, if that is not known), then as detection.
TimeAccount AccountAt(const TimeBook& book, int64_t unix_nanos);

// Returns the account of the hour before, or of the whole life of a younger job.
TimeAccount LastHourAt(const TimeBook& book, int64_t unix_nanos);

}  // namespace megascale::driver
