#include "controlplane/driver/account/time_account.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/check.h"

namespace megascale::driver {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr int64_t kHour = 3600 * kNanosPerSecond;
// Marks of steps alone are not closer than this.
constexpr int64_t kMarkInterval = 30 * kNanosPerSecond;

struct Part {
  int64_t (TimeAccount::*get)() const;
  void (TimeAccount::*set)(int64_t);
};

// All parts of the wall time.
constexpr std::array<Part, 10> kParts = {{
    {&TimeAccount::kept_nanos, &TimeAccount::set_kept_nanos},
    {&TimeAccount::queue_nanos, &TimeAccount::set_queue_nanos},
    {&TimeAccount::start_nanos, &TimeAccount::set_start_nanos},
    {&TimeAccount::load_nanos, &TimeAccount::set_load_nanos},
    {&TimeAccount::checkpoint_nanos, &TimeAccount::set_checkpoint_nanos},
    {&TimeAccount::detection_nanos, &TimeAccount::set_detection_nanos},
    {&TimeAccount::decision_nanos, &TimeAccount::set_decision_nanos},
    {&TimeAccount::recomputation_nanos, &TimeAccount::set_recomputation_nanos},
    {&TimeAccount::degraded_nanos, &TimeAccount::set_degraded_nanos},
    {&TimeAccount::evaluation_nanos, &TimeAccount::set_evaluation_nanos},
}};

void SumUp(TimeAccount* account) {
  int64_t wall = 0;
  for (const Part& part : kParts) wall += (account->*part.get)();
  account->set_wall_nanos(wall);
}

void Move(int64_t nanos, const Part& from, const Part& to, TimeAccount* account) {
  (account->*from.set)((account->*from.get)() - nanos);
  (account->*to.set)((account->*to.get)() + nanos);
}

void Add(int64_t nanos, const Part& part, TimeAccount* account) {
  MEGASCALE_CHECK(nanos >= 0);
  (account->*part.set)((account->*part.get)() + nanos);
}

constexpr const Part& kKept = kParts[0];
constexpr const Part& kQueue = kParts[1];
constexpr const Part& kStart = kParts[2];
constexpr const Part& kLoad = kParts[3];
constexpr const Part& kCheckpoint = kParts[4];
constexpr const Part& kDetection = kParts[5];
constexpr const Part& kDecision = kParts[6];
constexpr const Part& kRecomputation = kParts[7];
constexpr const Part& kDegraded = kParts[8];
constexpr const Part& kEvaluation = kParts[9];

// Drops marks that the last hour does not need, then those that lie closest to the one before.
void PruneMarks(int64_t now, TimeBook* book) {
  auto* marks = book->mutable_marks();
  int num_old = 0;
  while (num_old + 1 < marks->size() && marks->Get(num_old + 1).unix_nanos() <= now - kHour) {
    ++num_old;
  }
  marks->DeleteSubrange(0, num_old);
  while (marks->size() > kTimeMarksMax) {
    int closest = 1;
    const auto gap = [&](int i) {
      return marks->Get(i).unix_nanos() - marks->Get(i - 1).unix_nanos();
    };
    for (int i = 2; i < marks->size(); ++i) {
      if (gap(i) < gap(closest)) closest = i;
    }
    marks->DeleteSubrange(closest, 1);
  }
}

void AddMark(TimeBook* book) {
  v1::TimeMark* mark = book->add_marks();
  mark->set_unix_nanos(book->as_of_unix_nanos());
  mark->set_kept_step(book->kept_step());
  *mark->mutable_account() = book->account();
  PruneMarks(book->as_of_unix_nanos(), book);
}

// Splits time after the newest step in two: at most one usual step, and the rest.
struct OpenTime {
  int64_t step = 0;
  int64_t rest = 0;
};

OpenTime SplitOpen(int64_t nanos, int64_t usual_step) {
  const int64_t step = std::min(nanos, usual_step);
  return {step, nanos - step};
}

// What the time since as_of was, given what comes after it.
void CloseTraining(int64_t nanos, const PhaseChange& change, TimeBook* book) {
  TimeAccount* account = book->mutable_account();
  if (change.has_failed) {
    const OpenTime open = SplitOpen(nanos, book->usual_step_nanos());
    Add(open.step, kRecomputation, account);
    Add(open.rest, kDetection, account);
    return;
  }
  const bool is_stored =
      change.phase == TimeBook::PHASE_STORE || change.phase == TimeBook::PHASE_ENDED;
  Add(nanos, is_stored ? kCheckpoint : kDecision, account);
}

void Close(int64_t nanos, const PhaseChange& change, TimeBook* book) {
  TimeAccount* account = book->mutable_account();
  switch (book->phase()) {
    case TimeBook::PHASE_QUEUE:
      return Add(nanos, kQueue, account);
    case TimeBook::PHASE_START:
      return Add(nanos, kStart, account);
    case TimeBook::PHASE_LOAD:
      return Add(nanos, kLoad, account);
    case TimeBook::PHASE_TRAIN:
      return CloseTraining(nanos, change, book);
    case TimeBook::PHASE_STORE:
      return Add(nanos, kCheckpoint, account);
    default:
      return Add(nanos, kDecision, account);
  }
}

// Returns the account between two marks.
TimeAccount Between(const v1::TimeMark& a, const v1::TimeMark& b, int64_t unix_nanos) {
  const auto length = static_cast<double>(b.unix_nanos() - a.unix_nanos());
  const double share = length <= 0 ? 1 : static_cast<double>(unix_nanos - a.unix_nanos()) / length;
  TimeAccount account;
  for (const Part& part : kParts) {
    const int64_t before = (a.account().*part.get)();
    const int64_t grown = (b.account().*part.get)() - before;
    const auto then = static_cast<int64_t>(static_cast<double>(grown) * std::clamp(share, 0., 1.));
    (account.*part.set)(before + std::clamp<int64_t>(then, 0, std::max<int64_t>(0, grown)));
  }
  return account;
}

// Returns the time of steps up to `step`, between two marks that it lies between.
int64_t KeptBetween(const v1::TimeMark& a, const v1::TimeMark& b, int64_t step) {
  const int64_t grown = b.account().kept_nanos() - a.account().kept_nanos();
  const int64_t num_steps = b.kept_step() - a.kept_step();
  if (num_steps <= 0) return b.account().kept_nanos();
  const double share = static_cast<double>(step - a.kept_step()) / static_cast<double>(num_steps);
  return a.account().kept_nanos() + static_cast<int64_t>(static_cast<double>(grown) * share);
}

v1::TimeMark MarkOf(const TimeBook& book) {
  v1::TimeMark mark;
  mark.set_unix_nanos(book.as_of_unix_nanos());
  mark.set_kept_step(book.kept_step());
  *mark.mutable_account() = book.account();
  return mark;
}

int64_t KeptAtStep(const TimeBook& book, int64_t step) {
  v1::TimeMark before;  // the beginning: step 0, no time
  for (const v1::TimeMark& mark : book.marks()) {
    if (mark.kept_step() > step) return KeptBetween(before, mark, step);
    before = mark;
  }
  return KeptBetween(before, MarkOf(book), step);
}

// The newest kept time was in vain.
void TakeBack(int64_t kept, TimeAccount* account) {
  const int64_t lost = std::max<int64_t>(0, account->kept_nanos() - kept);
  Move(lost, kKept, kRecomputation, account);
}

}  // namespace

void OpenBook(int64_t unix_nanos, TimeBook* book) {
  book->Clear();
  book->set_phase(TimeBook::PHASE_QUEUE);
  book->set_as_of_unix_nanos(unix_nanos);
  AddMark(book);
}

void EnterPhase(const PhaseChange& change, TimeBook* book) {
  if (book->phase() == TimeBook::PHASE_ENDED || book->phase() == change.phase) return;
  const int64_t now = std::max(change.unix_nanos, book->as_of_unix_nanos());
  Close(now - book->as_of_unix_nanos(), change, book);
  SumUp(book->mutable_account());
  book->set_as_of_unix_nanos(now);
  book->set_phase(change.phase);
  AddMark(book);
}

void CountSteps(const v1::StepsTaken& taken, TimeBook* book) {
  if (book->phase() != TimeBook::PHASE_TRAIN || taken.step() <= book->kept_step()) return;
  const int64_t now = std::max(taken.taken_unix_nanos(), book->as_of_unix_nanos());
  const int64_t nanos = now - book->as_of_unix_nanos();
  const int64_t stall = std::clamp<int64_t>(taken.checkpoint_nanos(), 0, nanos);
  const int64_t evaluation = std::clamp<int64_t>(taken.evaluation_nanos(), 0, nanos - stall);
  const int64_t steps = nanos - stall - evaluation;
  const int64_t num_steps = std::max<int64_t>(1, taken.num_steps());
  const int64_t mean = std::max<int64_t>(1, taken.step_nanos() / num_steps);
  const int64_t usual = book->usual_step_nanos();
  if (usual == 0 || (num_steps >= kUsualSteps && mean < usual)) book->set_usual_step_nanos(mean);
  int64_t degraded = 0;
  if (usual > 0 && static_cast<double>(mean) > kUsualFactor * static_cast<double>(usual)) {
    degraded = static_cast<int64_t>(static_cast<double>(steps) *
                                    (1 - static_cast<double>(usual) / static_cast<double>(mean)));
  }
  TimeAccount* account = book->mutable_account();
  Add(stall, kCheckpoint, account);
  Add(degraded, kDegraded, account);
  Add(evaluation, kEvaluation, account);
  Add(steps - degraded, kKept, account);
  SumUp(account);
  book->set_as_of_unix_nanos(now);
  book->set_kept_step(taken.step());
  const auto& marks = book->marks();
  if (marks.empty() || now - marks.rbegin()->unix_nanos() >= kMarkInterval) AddMark(book);
}

void RollBack(int64_t step, TimeBook* book) {
  if (step >= book->kept_step()) {
    book->set_kept_step(step);
    return;
  }
  const int64_t kept =
      std::clamp<int64_t>(KeptAtStep(*book, step), 0, book->account().kept_nanos());
  TakeBack(kept, book->mutable_account());
  for (v1::TimeMark& mark : *book->mutable_marks()) {
    TakeBack(kept, mark.mutable_account());
    mark.set_kept_step(std::min(mark.kept_step(), step));
  }
  book->set_kept_step(step);
}

TimeAccount AccountAt(const TimeBook& book, int64_t unix_nanos) {
  TimeAccount account = book.account();
  const int64_t nanos = std::max<int64_t>(0, unix_nanos - book.as_of_unix_nanos());
  if (book.phase() == TimeBook::PHASE_TRAIN) {
    const int64_t usual = book.usual_step_nanos() > 0 ? book.usual_step_nanos() : nanos;
    const OpenTime open = SplitOpen(nanos, usual);
    Add(open.step, kKept, &account);
    Add(open.rest, kDetection, &account);
  } else if (book.phase() != TimeBook::PHASE_ENDED) {
    TimeBook closed = book;
    Close(nanos, {}, &closed);
    account = closed.account();
  }
  SumUp(&account);
  return account;
}

TimeAccount LastHourAt(const TimeBook& book, int64_t unix_nanos) {
  const bool has_ended = book.phase() == TimeBook::PHASE_ENDED;
  const int64_t now =
      has_ended ? book.as_of_unix_nanos() : std::max(unix_nanos, book.as_of_unix_nanos());
  TimeAccount account = AccountAt(book, now);
  v1::TimeMark present;
  present.set_unix_nanos(now);
  *present.mutable_account() = account;
  TimeAccount before;
  for (int i = 0; i < book.marks_size(); ++i) {
    const v1::TimeMark& mark = book.marks(i);
    if (mark.unix_nanos() > now - kHour) break;
    before = Between(mark, i + 1 < book.marks_size() ? book.marks(i + 1) : present, now - kHour);
  }
  for (const Part& part : kParts) {
    (account.*part.set)(std::max<int64_t>(0, (account.*part.get)() - (before.*part.get)()));
  }
  SumUp(&account);
  return account;
}

}  // namespace megascale::driver
