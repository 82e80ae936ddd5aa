// Tells what a file is that was found in the place of another one, from its first bytes: a pointer
// of Git LFS, a web page, an archive. For messages only. Threads: pure function.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace megascale::base {

// Bytes of a file's beginning that are enough.
inline constexpr int kContentKindBytes = 512;

// Returns what goes after "FILE: ": what the content is, and what to do; "" if it is not known.
// `head`: the file's beginning.
std::string WhatItIs(absl::string_view head);

}  // namespace megascale::base
