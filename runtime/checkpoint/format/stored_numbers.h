// Numbers as files store them: F64, F32, BF16 and F16, little endian. Threads: plain functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megascale::checkpoint {

// Returns the value of a half-precision number, exactly.
float HalfToFloat(uint16_t half);
// Returns the nearest half-precision number, ties to even; infinite beyond its range.
uint16_t FloatToHalf(float value);

// Overwrites `out` with stored numbers of type `dtype`: exactly, except that F64 is rounded when
// read as float. Requires: bytes.size() fits out.size(). Errors: InvalidArgument - `dtype` is
// another type.
absl::Status ToNumbers(absl::string_view dtype, absl::Span<const char> bytes,
                       absl::Span<float> out);
absl::Status ToNumbers(absl::string_view dtype, absl::Span<const char> bytes,
                       absl::Span<double> out);

// Overwrites `out` with `numbers` stored as `dtype`, rounded to nearest, ties to even. Errors: as
// ToNumbers.
absl::Status FromNumbers(absl::string_view dtype, absl::Span<const float> numbers,
                         absl::Span<char> out);

// Returns the index of the first stored number of type F64, F32, BF16 or F16 that is infinite or
// not a number; -1 without one, and for other types.
int64_t FirstNotFinite(absl::string_view dtype, absl::Span<const char> bytes);

}  // namespace megascale::checkpoint
