// CHECK, for invariants whose violation is a bug of ours. Prints file, line and condition, then
// aborts. Never use it for user input or I/O: those return absl::Status. It takes no message by <<;
// CHECK_MSG takes a string.
#pragma once

#include "absl/strings/string_view.h"

namespace megascale::base {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              absl::string_view message);

}  // namespace megascale::base

#define MEGASCALE_CHECK(condition)                                                        \
  do {                                                                                    \
    if (!(condition)) ::megascale::base::CheckFailed(__FILE__, __LINE__, #condition, ""); \
  } while (false)

#define MEGASCALE_CHECK_MSG(condition, message)                                                  \
  do {                                                                                           \
    if (!(condition)) ::megascale::base::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
